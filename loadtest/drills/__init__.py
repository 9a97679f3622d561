"""Drills: programs that start servers of their own on 127.0.0.1, hurt them under load, and judge."""
