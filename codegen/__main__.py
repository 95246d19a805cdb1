from codegen.abi import main

raise SystemExit(main())
