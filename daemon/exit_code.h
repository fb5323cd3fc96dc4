#pragma once

namespace pagoda::daemon {

// What a pagoda process answers to its supervisor. Restarting does not help after 2 and 3.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,     // a client command: the request failed, or the daemon is not serving
  kExitUsage = 2,       // flags, environment or configuration file
  kExitBadModel = 3,    // model directory missing, broken, not supported or too large
  kExitNoDevice = 4,    // device, driver or backend module missing
  kExitWorkerLost = 5,  // a worker died, hung or reported a device fault
  kExitAddress = 6,     // an address is in use or cannot be listened on
};

}  // namespace pagoda::daemon
