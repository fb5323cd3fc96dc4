#pragma once

#include "pagoda/internal/v1/worker.pb.h"

namespace pagoda::parallel {

// What the ranks of a group say of themselves, as one worker would: names are those of the `first`,
// bytes and counts are added up, what each must have room for is the least, times are the longest.
void AddHello(const internal::v1::WorkerHello& hello, bool first, internal::v1::WorkerHello* all);
void AddReady(const internal::v1::ModelReady& ready, bool first, internal::v1::ModelReady* all);
void AddWork(const internal::v1::DeviceWork& work, internal::v1::DeviceWork* sum);

}  // namespace pagoda::parallel
