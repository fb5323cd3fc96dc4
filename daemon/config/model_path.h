#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/config/setting_source.h"

namespace pagoda::daemon {

// Where models are looked for.
struct ModelPlaces {
  // The hub folder of the Hugging Face cache; only read.
  std::string hugging_face_cache;
  // Candidates for the default model, best first.
  std::vector<std::string> default_model;

  // HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub; beside
  // the executable, in the installed place, in the source tree above the executable.
  static ModelPlaces FromEnvironment();
};

// Turns config.model.path as the user wrote it (a directory, ORG/NAME, or empty for the default
// model) into an absolute directory, and sets the served name and the revision unless they are
// given. NOT_FOUND saying where was looked and what to do.
absl::Status ResolveModel(const ModelPlaces& places, MergedConfig* merged);

}  // namespace pagoda::daemon
