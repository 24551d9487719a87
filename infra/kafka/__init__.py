"""Kafka: topics, records sent and read outside consumer groups, and dead letters.

    admin.py                  topics compared with the table and changed; ids and offsets of topics
    admin_client.py           the client of every question, those that are asked again and again, and the rights of a client
    security.py               how every client connects: TLS and logins; oauth.py has their tokens, aiokafka_options.py the same for aiokafka
    producer.py               the one set-up of everything that sends
    publisher.py              events sent, one or many
    group_member.py           ends the membership of a killed process
    reader.py                 topics read to an end, or followed; follower_thread.py follows one in a thread; log_gaps.py looks why offsets have no record
    removed_records.py        records that retention has removed from a topic
    dead_letters.py           what a rejected record becomes; dead_letter_sender.py sends it, sent_letters.py finds which were sent, redrive.py sends them again
    json_lines.py             events from a file
    json_schemas.py           generated schemas of records; schema_compatibility.py compares them, asyncapi.py writes the document of all topics
    cli.py, dlq_cli.py        `aif topics`, `aif publish`, `aif dlq`

Not here: what records hold and which topics there are (schemas/events.py, schemas/topics.py), the workers' consumers (streams), the local broker
(infra/broker).
"""
