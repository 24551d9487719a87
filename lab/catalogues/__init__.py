"""What the demo, the benches and the evaluation feed the system with: events of a synthetic world or of files, and users to measure on.

catalogue.py              what a catalogue is: read it first; open_catalogue.py opens one
world.py                  the synthetic world, world_catalogue.py its events, world_drift.py a world that moves
measured_catalogue.py     files of others (infra/data) with held-out users
item_changes.py           events after the evaluation time: changed prices, new items
"""
