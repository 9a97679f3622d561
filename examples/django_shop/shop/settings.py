"""Settings of a Django project whose tasks are in a database of fdbqueue."""

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "of an example")
USE_TZ = True
INSTALLED_APPS = ["fdbqueue.integrations.django", "shop"]
TASKS = {
    "default": {
        "BACKEND": "fdbqueue.integrations.django.FdbQueueBackend",
        "QUEUES": ["default", "mails"],
        "OPTIONS": {"url": os.environ.get("FDBQUEUE_URL", "embedded:shop-data")},
    }
}
