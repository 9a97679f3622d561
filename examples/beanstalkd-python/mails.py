"""Put a job, take it, and delete it, with greenstalk: python mails.py 127.0.0.1 11300."""

import sys

import greenstalk


def main(host: str, port: int) -> None:
    with greenstalk.Client((host, port), use="mails", watch="mails") as client:
        client.put("hello", priority=5, ttr=30)
        job = client.reserve(timeout=10)
        print(job.body)
        client.delete(job)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
