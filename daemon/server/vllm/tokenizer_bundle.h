#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "kernels/base/mutex.h"

namespace pagoda::daemon {

// The files of a model directory that tokenise and render chats, as gateways take them.
struct TokenizerBundle {
  std::string zip;
  std::string sha256;  // of the zip, in lower-case hexadecimal
};

// FAILED_PRECONDITION when the directory has no tokenizer or its files are more than gateways take.
absl::StatusOr<TokenizerBundle> MakeTokenizerBundle(const std::string& model_dir);

// Makes the bundle once, when it is first asked for. Thread-safe; whoever comes meanwhile waits,
// which takes about a second for the largest tokenizers.
class TokenizerBundleCache {
 public:
  explicit TokenizerBundleCache(std::string model_dir) : model_dir_(std::move(model_dir)) {}

  absl::StatusOr<std::shared_ptr<const TokenizerBundle>> Get();

 private:
  const std::string model_dir_;
  Mutex mutex_;
  std::shared_ptr<const TokenizerBundle> bundle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::daemon
