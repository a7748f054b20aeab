"""The Gateway: trials of the trainer in, rollouts of NeMo Gym out. `app.py` puts the parts together."""
