"""The parts for operators: command line, dashboard, verification, exports, diagnosis."""
