"""The version of the key layout: the keys of queues and of a root, and the meaning of their values.

It lies in the definition of each named queue (registry/definition.py), and beside a queue over a subspace
(registry/subspace_layout.py). Each session tells the layout of its release (sessions/holder.py). So `fdbqueue
upgrade` knows which processes would still write older data. docs/design.md has the rules of
changes within a version.
"""

LAYOUT = 1
"""The key layout that this release writes. It reads layout 0, too."""
LAYOUT_BEFORE = 0
"""The layout of data without a version, which earlier releases have written."""
