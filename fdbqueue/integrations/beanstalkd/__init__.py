"""beanstalkd's protocol over task queues: `fdbqueue serve --beanstalkd` (docs/beanstalkd.md)."""
