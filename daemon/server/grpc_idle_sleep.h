#pragma once

namespace pagoda::daemon {

// gRPC 1.51 serves the callback API with threads that, after one second without events, sleep 100
// ms before they poll again, so that the first call after a quiet second waits up to 100 ms for
// nobody. This file defines gpr_sleep_until, by which they sleep, and so takes the place of
// libgpr's in any executable that links it.
//
// Whether it does; linking this function is what pulls the definition in.
bool GrpcIdleSleepIsOff();

}  // namespace pagoda::daemon
