#include "engine/model/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <set>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/model/json_file.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

constexpr absl::string_view kIndexName = "model.safetensors.index.json";
constexpr absl::string_view kSuffix = ".safetensors";
constexpr size_t kMaxNamesInMessage = 10;

absl::Status FileError(absl::string_view path, int error) {
  const std::string message = absl::StrCat(path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
}

absl::Status InFile(absl::string_view path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

std::string SomeNames(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMaxNamesInMessage);
  std::string text =
      absl::StrJoin(names.begin(), names.begin() + static_cast<int64_t>(shown), ", ");
  if (shown < names.size()) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

// Reads exactly [offset, offset + size).
absl::Status ReadFully(int fd, const std::string& path, uint64_t offset, size_t size, char* to) {
  // Linux moves at most 2 GiB a call.
  constexpr size_t kMaxBytesPerCall = size_t{1} << 30;
  size_t done = 0;
  while (done < size) {
    const ssize_t got = pread(
        fd, to + done, std::min(size - done, kMaxBytesPerCall), static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(path, errno);
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path,
                                              ": ended at byte ",
                                              offset + done,
                                              " while it was read; expected ",
                                              offset + size,
                                              " bytes: has it been replaced?"));
    }
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ListDirectory(absl::string_view model_dir) {
  DIR* dir = opendir(std::string(model_dir).c_str());
  if (dir == nullptr) return FileError(model_dir, errno);
  std::vector<std::string> names;
  while (const dirent* entry = readdir(dir)) names.emplace_back(entry->d_name);
  closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

// Weights of other formats, to say what is wrong with a directory that has nothing else.
absl::Status NoSafetensors(absl::string_view model_dir, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    for (absl::string_view suffix : {".bin", ".pt", ".pth", ".ckpt", ".pkl"}) {
      if (!absl::EndsWith(name, suffix)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          model_dir,
          ": has weights only in ",
          NameForMessage(name),
          "; expected *.safetensors: pickle files can run code and are never read, convert them"));
    }
    if (absl::EndsWith(name, ".gguf")) {
      return absl::InvalidArgumentError(absl::StrCat(
          model_dir, ": has weights only in ", NameForMessage(name), "; expected *.safetensors"));
    }
  }
  return absl::NotFoundError(absl::StrCat(model_dir, ": has no *.safetensors file"));
}

// For "x-00002-of-00006.safetensors": names of the six.
std::vector<std::string> SiblingShards(absl::string_view name) {
  constexpr size_t kTailChars = absl::string_view("-00002-of-00006.safetensors").size();
  if (name.size() < kTailChars) return {};
  const absl::string_view tail = name.substr(name.size() - kTailChars);
  int32_t index = 0, count = 0;
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" ||
      !absl::SimpleAtoi(tail.substr(1, 5), &index) ||
      !absl::SimpleAtoi(tail.substr(10, 5), &count)) {
    return {};
  }
  std::vector<std::string> siblings;
  const absl::string_view stem = name.substr(0, name.size() - kTailChars);
  for (int32_t i = 1; i <= count; ++i) {
    siblings.push_back(absl::StrFormat("%s-%05d-of-%05d%s", stem, i, count, kSuffix));
  }
  return siblings;
}

bool IsPlainName(const std::string& name) {
  return absl::EndsWith(name, kSuffix) && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos && name.size() <= 255 && name[0] != '.';
}

// The index: tensor -> file.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(absl::string_view path) {
  PAGODA_ASSIGN_OR_RETURN(const nlohmann::json index, ReadJsonObject(path));
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": weight_map is missing; expected an object {tensor: file}"));
  }
  std::map<std::string, std::string> file_of;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string() || !IsPlainName(file.get<std::string>())) {
      return absl::InvalidArgumentError(
          absl::StrCat(path,
                       ": weight_map.",
                       NameForMessage(tensor),
                       " is ",
                       JsonForMessage(file),
                       "; expected the name of a .safetensors file in the same directory"));
    }
    file_of.emplace(tensor, file.get<std::string>());
  }
  return file_of;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(absl::string_view model_dir) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  const std::string index_path = absl::StrCat(model_dir, "/", kIndexName);
  const bool has_index = access(index_path.c_str(), F_OK) == 0;
  PAGODA_RETURN_IF_ERROR(has_index ? checkpoint->OpenIndexed(model_dir, index_path)
                                   : checkpoint->OpenAll(model_dir));
  return checkpoint;
}

Checkpoint::~Checkpoint() {
  for (const File& file : files_) {
    if (file.fd >= 0) close(file.fd);
  }
}

void Checkpoint::AddPrefix(absl::string_view prefix, absl::string_view except) {
  std::map<std::string, CheckpointTensor, std::less<>> renamed;
  for (auto& [name, tensor] : tensors_) {
    if (name != except && !absl::StartsWith(name, prefix)) {
      tensor.name = absl::StrCat(prefix, name);
    }
    renamed.emplace(tensor.name, std::move(tensor));
  }
  tensors_ = std::move(renamed);
}

const CheckpointTensor* Checkpoint::Find(absl::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

absl::Status Checkpoint::Read(const CheckpointTensor& tensor,
                              uint64_t begin,
                              size_t size_bytes,
                              void* destination) const {
  PAGODA_CHECK(begin <= tensor.size_bytes && size_bytes <= tensor.size_bytes - begin);
  const File& file = files_[static_cast<size_t>(tensor.file_idx)];
  return ReadFully(
      file.fd, file.path, tensor.file_offset + begin, size_bytes, static_cast<char*>(destination));
}

absl::Status Checkpoint::OpenFile(const std::string& path) {
  File& file = files_.emplace_back();
  file.path = path;
  file.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat info;
  if (file.fd < 0 || fstat(file.fd, &info) != 0) return FileError(path, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  const uint64_t file_bytes = static_cast<uint64_t>(info.st_size);
  std::string prefix(std::min(file_bytes, kSafetensorsPrefixBytes), '\0');
  PAGODA_RETURN_IF_ERROR(ReadFully(file.fd, path, 0, prefix.size(), prefix.data()));
  const absl::StatusOr<uint64_t> header_bytes = SafetensorsHeaderBytes(prefix, file_bytes);
  if (!header_bytes.ok()) return InFile(path, header_bytes.status());
  std::string header(*header_bytes, '\0');
  PAGODA_RETURN_IF_ERROR(
      ReadFully(file.fd, path, kSafetensorsPrefixBytes, header.size(), header.data()));
  file.data_offset = kSafetensorsPrefixBytes + *header_bytes;
  absl::StatusOr<std::vector<SafetensorsEntry>> entries =
      ParseSafetensorsHeader(header, file_bytes - file.data_offset);
  if (!entries.ok()) return InFile(path, entries.status());
  file.entries = *std::move(entries);
  return absl::OkStatus();
}

absl::Status Checkpoint::AddTensor(int32_t file_idx, const SafetensorsEntry& entry) {
  const File& file = files_[static_cast<size_t>(file_idx)];
  const auto [it, added] =
      tensors_.emplace(entry.name,
                       CheckpointTensor{.name = entry.name,
                                        .type = entry.type,
                                        .shape = entry.shape,
                                        .file_idx = file_idx,
                                        .file_offset = file.data_offset + entry.data_begin,
                                        .size_bytes = entry.data_end - entry.data_begin});
  if (added) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(file.path,
                                                 ": tensor '",
                                                 NameForMessage(entry.name),
                                                 "' is also in ",
                                                 FileOf(it->second),
                                                 "; expected it once, or a ",
                                                 kIndexName));
}

absl::Status Checkpoint::OpenIndexed(absl::string_view model_dir, absl::string_view index_path) {
  const absl::StatusOr<std::map<std::string, std::string>> index = ReadIndex(index_path);
  if (!index.ok()) return index.status();
  std::map<std::string, int32_t> file_idx_of;
  for (const auto& [tensor, file] : *index) file_idx_of.emplace(file, 0);
  std::vector<std::string> missing;
  for (const auto& [file, idx] : file_idx_of) {
    if (access(absl::StrCat(model_dir, "/", file).c_str(), F_OK) != 0) missing.push_back(file);
  }
  if (!missing.empty()) {
    return absl::NotFoundError(
        absl::StrCat(index_path, ": names files that are missing: ", absl::StrJoin(missing, ", ")));
  }
  for (auto& [file, idx] : file_idx_of) {
    idx = static_cast<int32_t>(files_.size());
    PAGODA_RETURN_IF_ERROR(OpenFile(absl::StrCat(model_dir, "/", file)));
    for (const SafetensorsEntry& entry : files_.back().entries) {
      const auto assigned = index->find(entry.name);
      if (assigned != index->end() && assigned->second == file) {
        PAGODA_RETURN_IF_ERROR(AddTensor(idx, entry));
      }
    }
  }
  for (const auto& [tensor, file] : *index) {
    if (Find(tensor) == nullptr) {
      missing.push_back(absl::StrCat("'", NameForMessage(tensor), "' in ", file));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(
      index_path, ": names tensors that their files do not hold: ", SomeNames(missing)));
}

absl::Status Checkpoint::OpenAll(absl::string_view model_dir) {
  PAGODA_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(model_dir));
  const std::set<std::string> present(names.begin(), names.end());
  std::set<std::string> missing;
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, kSuffix) || absl::StartsWith(name, "consolidated") ||
        absl::StartsWith(name, "adapter_model")) {
      continue;
    }
    for (const std::string& sibling : SiblingShards(name)) {
      if (!present.contains(sibling)) missing.insert(sibling);
    }
    if (!missing.empty()) continue;
    const int32_t file_idx = static_cast<int32_t>(files_.size());
    PAGODA_RETURN_IF_ERROR(OpenFile(absl::StrCat(model_dir, "/", name)));
    for (const SafetensorsEntry& entry : files_.back().entries) {
      PAGODA_RETURN_IF_ERROR(AddTensor(file_idx, entry));
    }
  }
  if (!missing.empty()) {
    return absl::NotFoundError(
        absl::StrCat(model_dir, ": shards are missing: ", absl::StrJoin(missing, ", ")));
  }
  return files_.empty() ? NoSafetensors(model_dir, names) : absl::OkStatus();
}

}  // namespace pagoda::engine
