from headrace.cli.main import main

main()
