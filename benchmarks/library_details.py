"""Why SBX and rejax learn faster or slower: ours with their details, one by one and together."""

from manyseeds.benchmarks.measurements.library_details import main

if __name__ == "__main__":
    main()
