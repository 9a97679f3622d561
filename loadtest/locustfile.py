"""What Locust loads: the users, the shape that the options choose, and what happens around a run."""

from loadtest import hooks, options
from loadtest.shapes import ChosenShape as ChosenShape
from loadtest.users import Consumer as Consumer
from loadtest.users import Crawler as Crawler
from loadtest.users import Mixed as Mixed
from loadtest.users import Producer as Producer
from loadtest.users import Tenant as Tenant

options.install()
hooks.install()
