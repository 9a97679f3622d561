"""Put a job, take it, and delete it, with pystalk: python mails_pystalk.py 127.0.0.1 11300."""

import sys

from pystalk import BeanstalkClient


def main(host: str, port: int) -> None:
    client = BeanstalkClient(host, port, auto_decode=True)
    client.watch("mails")
    with client.using("mails") as inserter:
        inserter.put_job("hello", pri=5, ttr=30)
    job = client.reserve_job(timeout=10)
    print(job.job_data)
    client.delete_job(job.job_id)
    client.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
