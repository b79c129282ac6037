"""What tests stand on: storage services on this machine, faults, hostile files. No part of the package.

Services: ``s3_server`` ``gcs_server`` ``azure_server`` ``ais_server`` ``hf_server`` ``ssh_server`` ``web_server``;
``slurm_cluster`` is a scheduler. ``services`` starts them and shares them between the processes of a run;
``paced_server`` and ``slow_line`` limit their speed.

Schemes under test: ``schemes`` ``schemes_local`` ``schemes_cloud`` ``scheme_servers`` ``profiles``; what is read there:
``readings`` ``worker_reads`` ``after_forks``.

Faults: ``proxy`` breaks answers by a seed, ``wires`` cuts connections, ``fault_matrix`` lists what is tried.

Hostile files: ``hostile`` and the modules named after it; ``zoo`` has one archive of each kind that programs write.
"""
