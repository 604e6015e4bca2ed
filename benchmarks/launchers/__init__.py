"""Where the commands of a sweep run: as processes here, on a Ray cluster, as jobs of Slurm.

A launcher is a class with

    run(jobs)       an iterator of `jobs.Event`s, in which every job finishes or fails once;
                    closing it ends what runs, but for the jobs of Slurm

What is finished is asked of the store, never of a launcher.
"""
