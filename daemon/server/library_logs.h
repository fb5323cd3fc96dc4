#pragma once

namespace pagoda::daemon {

// Sends what gRPC logs through ours, each place in its code at most every ten seconds, and silences
// protobuf, whose only lines are about clients' mistakes. Before the libraries are used.
void RouteLibraryLogs();

}  // namespace pagoda::daemon
