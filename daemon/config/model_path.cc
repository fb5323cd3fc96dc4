#include "daemon/config/model_path.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

namespace fs = std::filesystem;

constexpr char kDefaultModelName[] = "fable-7m";

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string HuggingFaceCache() {
  if (const std::string cache = Environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = Environment("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string xdg = Environment("XDG_CACHE_HOME"); !xdg.empty()) {
    return xdg + "/huggingface/hub";
  }
  return Environment("HOME") + "/.cache/huggingface/hub";
}

std::vector<std::string> DefaultModelPlaces() {
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  const std::string installed = absl::StrCat("pagoda/models/", kDefaultModelName);
  std::vector<std::string> places = {
      (executable.parent_path().parent_path() / "share" / installed).string(),
      absl::StrCat(PAGODA_DATADIR "/", installed)};
  for (fs::path folder = executable.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    places.push_back((folder / "deploy/models" / kDefaultModelName).string());
  }
  return places;
}

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// ORG/NAME with plain parts: nothing that could lead out of the cache's folder.
bool IsHubName(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  if (parts.size() != 2) return false;
  for (const absl::string_view part : parts) {
    if (part.empty() || part[0] == '.') return false;
    for (const char c : part) {
      if (!absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.') return false;
    }
  }
  return true;
}

bool IsPlainRevision(absl::string_view revision) {
  return !revision.empty() && revision[0] != '/' && !absl::StrContains(revision, "..");
}

// The commit that refs/REVISION names; REVISION itself when it is a commit.
absl::StatusOr<std::string> CommitOf(const std::string& repository, const std::string& revision) {
  std::ifstream ref(absl::StrCat(repository, "/refs/", revision));
  std::string commit;
  if (ref >> commit && IsPlainRevision(commit)) return commit;
  if (IsDirectory(absl::StrCat(repository, "/snapshots/", revision))) return revision;
  return absl::NotFoundError(absl::StrCat("no revision ", revision));
}

struct CachedModel {
  std::string directory;
  std::string commit;
};

absl::StatusOr<CachedModel> FindInCache(const std::string& cache,
                                        const std::string& name,
                                        const std::string& revision) {
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  const std::string repository = absl::StrCat(cache, "/models--", parts[0], "--", parts[1]);
  const absl::Status missing = absl::NotFoundError(
      absl::StrCat("model ",
                   name,
                   revision.empty() ? "" : absl::StrCat(" (revision ", revision, ")"),
                   ": neither a directory nor in the Hugging Face cache ",
                   cache,
                   "; download it there (hf download ",
                   name,
                   ") or give a directory"));
  if (!IsDirectory(repository)) return missing;
  const std::string wanted = revision.empty() ? "main" : revision;
  if (!IsPlainRevision(wanted)) return missing;
  const absl::StatusOr<std::string> commit = CommitOf(repository, wanted);
  if (!commit.ok()) return missing;
  CachedModel found{.directory = absl::StrCat(repository, "/snapshots/", *commit),
                    .commit = *commit};
  if (!IsDirectory(found.directory)) return missing;
  return found;
}

absl::StatusOr<std::string> FindDefaultModel(const std::vector<std::string>& places) {
  for (const std::string& place : places) {
    if (IsDirectory(place)) return place;
  }
  return absl::NotFoundError(absl::StrCat(
      "the default model is not installed; give MODEL. Looked for ", absl::StrJoin(places, ", ")));
}

absl::StatusOr<std::string> Absolute(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::canonical(path, error);
  if (!error) return absolute.string();
  return absl::NotFoundError(absl::StrCat("model directory ", path, ": ", error.message()));
}

}  // namespace

ModelPlaces ModelPlaces::FromEnvironment() {
  return {.hugging_face_cache = HuggingFaceCache(), .default_model = DefaultModelPlaces()};
}

absl::Status ResolveModel(const ModelPlaces& places, MergedConfig* merged) {
  internal::v1::ModelConfig* model = merged->config.mutable_model();
  const std::string asked = model->path();
  std::string name = asked;
  if (asked.empty()) {
    PAGODA_ASSIGN_OR_RETURN(const std::string found, FindDefaultModel(places.default_model));
    model->set_path(found);
    name = kDefaultModelName;
  } else if (!IsDirectory(asked) && IsHubName(asked)) {
    PAGODA_ASSIGN_OR_RETURN(const CachedModel found,
                            FindInCache(places.hugging_face_cache, asked, model->revision()));
    model->set_path(found.directory);
    model->set_revision(found.commit);
  } else {
    PAGODA_ASSIGN_OR_RETURN(const std::string absolute, Absolute(asked));
    model->set_path(absolute);
    name = fs::path(absolute).filename().string();
  }
  if (model->served_names().empty()) model->add_served_names(name);
  return absl::OkStatus();
}

}  // namespace pagoda::daemon
