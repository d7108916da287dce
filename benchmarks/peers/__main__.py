from benchmarks.peers.setup import main

main()
