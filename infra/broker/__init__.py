"""The local Kafka broker: `aif broker`.

- server.py: starts and stops Apache Kafka as one KRaft node: read it first; properties.py: its configuration
- jars.py, jars.lock: its jars; record.py: the address and process that it leaves for others
- cli.py: the commands
"""
