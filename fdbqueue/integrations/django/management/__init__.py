"""The commands that `manage.py` has with the app `fdbqueue.integrations.django`."""
