#include "daemon/server/vllm/tokenizer_bundle.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <openssl/evp.h>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/server/rpc_error.h"
#include "daemon/server/zip_archive.h"
#include "engine/model/json_file.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

// What gateways take.
constexpr size_t kMaxBundleEntries = 50;
constexpr size_t kMaxBundleBytes = size_t{200} << 20;
constexpr size_t kMaxBundleContentBytes = size_t{500} << 20;

constexpr std::array<absl::string_view, 9> kBundleNames = {"tokenizer.json",
                                                           "tokenizer_config.json",
                                                           "config.json",
                                                           "generation_config.json",
                                                           "special_tokens_map.json",
                                                           "vocab.json",
                                                           "merges.txt",
                                                           "chat_template.json",
                                                           "preprocessor_config.json"};
constexpr std::array<absl::string_view, 3> kBundleSuffixes = {".tiktoken", ".jinja", ".model"};

bool IsWanted(absl::string_view name) {
  return std::find(kBundleNames.begin(), kBundleNames.end(), name) != kBundleNames.end() ||
         std::any_of(kBundleSuffixes.begin(), kBundleSuffixes.end(), [name](absl::string_view s) {
           return absl::EndsWith(name, s);
         });
}

absl::Status BundleTooLargeError(absl::string_view what, size_t limit) {
  return absl::FailedPreconditionError(
      absl::StrCat("GetTokenizer: the model's tokenizer files have more than ", limit, " ", what));
}

absl::StatusOr<std::vector<std::string>> WantedNames(const std::string& model_dir) {
  DIR* const dir = opendir(model_dir.c_str());
  if (dir == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("GetTokenizer: the model's directory: ", std::strerror(errno)));
  }
  const auto close = absl::MakeCleanup([dir] { closedir(dir); });
  std::vector<std::string> names;
  while (const dirent* entry = readdir(dir)) {
    if (IsWanted(entry->d_name)) names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  if (names.size() > kMaxBundleEntries) return BundleTooLargeError("entries", kMaxBundleEntries);
  return names;
}

std::string Sha256Hex(const std::string& bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
}

}  // namespace

absl::StatusOr<TokenizerBundle> MakeTokenizerBundle(const std::string& model_dir) {
  PAGODA_ASSIGN_OR_RETURN(const std::vector<std::string> names, WantedNames(model_dir));
  std::vector<ZipEntry> entries;
  size_t num_bytes = 0;
  for (const std::string& name : names) {
    absl::StatusOr<std::string> content =
        engine::ReadSmallFile(absl::StrCat(model_dir, "/", name), kMaxBundleContentBytes);
    // A link to nowhere, or a folder of that name.
    if (!content.ok()) continue;
    num_bytes += content->size();
    if (num_bytes > kMaxBundleContentBytes)
      return BundleTooLargeError("bytes", kMaxBundleContentBytes);
    entries.push_back({name, *std::move(content)});
  }
  TokenizerBundle bundle;
  PAGODA_ASSIGN_OR_RETURN(bundle.zip, MakeZip(entries));
  if (bundle.zip.size() > kMaxBundleBytes)
    return BundleTooLargeError("compressed bytes", kMaxBundleBytes);
  bundle.sha256 = Sha256Hex(bundle.zip);
  return bundle;
}

absl::StatusOr<std::shared_ptr<const TokenizerBundle>> TokenizerBundleCache::Get() {
  MutexLock lock(&mutex_);
  if (bundle_ == nullptr) {
    PAGODA_ASSIGN_OR_RETURN(TokenizerBundle bundle, MakeTokenizerBundle(model_dir_));
    bundle_ = std::make_shared<const TokenizerBundle>(std::move(bundle));
  }
  return bundle_;
}

}  // namespace pagoda::daemon
