#pragma once

namespace pagoda::daemon {

// What a pagoda process answers to its supervisor. Restarting does not help after 2, 3 and 7 to 11.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,      // a client command: the request failed, or the daemon is not serving
  kExitUsage = 2,        // flags, environment or configuration file
  kExitBadModel = 3,     // model directory missing, broken, not supported or too large
  kExitNoDevice = 4,     // the device is missing or cannot be opened
  kExitWorkerLost = 5,   // a worker died, hung or reported a device fault
  kExitAddress = 6,      // an address is in use or cannot be listened on
  kExitNoModule = 7,     // pagoda_cuda.so is missing, not loadable or of another version
  kExitNoDriver = 8,     // no NVIDIA driver
  kExitOldDriver = 9,    // the NVIDIA driver is too old
  kExitOldDevice = 10,   // the GPU is of a kind that has no kernels
  kExitNoMemory = 11,    // the model and its caches do not fit in the device's memory
  kExitHostMemory = 12,  // an allocation of the daemon failed
  kExitCutOff = 13,      // stopped as asked, while requests ran: they were cut off
};

}  // namespace pagoda::daemon
