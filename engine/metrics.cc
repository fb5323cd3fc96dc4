#include "engine/metrics.h"

namespace pagoda::engine {

// Every list holds the edges of the servers that dashboards and autoscalers know, so that a mixed
// fleet can be summed by `le`; finer edges are added where those were too coarse to see a fast
// step.

std::vector<double> TimeToFirstTokenBuckets() {
  return {.001, .0025, .005, .01, .02, .04, .06, .08, .1, .15, .25, .5,  .75,
          1,    1.5,   2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}

std::vector<double> InterTokenBuckets() {
  return {.001, .002, .003, .004, .006, .008, .01, .0125, .015, .02, .025, .03, .04, .05, .075,
          .1,   .15,  .2,   .3,   .4,   .5,   .75, 1,     2.5,  5,   7.5,  10,  20,  40,  80};
}

std::vector<double> RequestPhaseBuckets() {
  return {.005, .01, .025, .05, .1, .2, .3, .5,  .8,  1,   1.5, 2,    2.5, 5,
          10,   15,  20,   30,  40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}

std::vector<double> StepDurationBuckets() {
  return {.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .0075, .01, .015,
          .02,    .03,     .04,    .05,   .075,   .1,    .25,  .5,    1,    2.5,   5,   10};
}

std::vector<double> TokenCountBuckets() {
  return {1,    2,     5,     8,     10,    16,     20,     32,     50,     64,   100,
          128,  200,   256,   500,   512,   1000,   1024,   2000,   2048,   4096, 5000,
          8192, 10000, 16384, 20000, 50000, 100000, 200000, 500000, 1000000};
}

std::vector<double> BatchSizeBuckets() {
  return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
}

}  // namespace pagoda::engine
