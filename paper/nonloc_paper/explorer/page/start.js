// The last script: all panels have joined.
"use strict";
explorer.start();
