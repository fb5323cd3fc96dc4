#include "kernels/backend.h"

#include <dlfcn.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/device_fault.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda_module.h"

namespace pagoda::kernels {
namespace {

std::string ExecutableFolder() {
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  if (size <= 0) return "";
  const std::string executable(path, static_cast<size_t>(size));
  return executable.substr(0, executable.rfind('/'));
}

// An explicit folder beats the executable's own (a build tree), which beats the installed one.
std::vector<std::string> ModulePaths(const BackendOptions& options) {
  std::vector<std::string> paths;
  for (const std::string& folder :
       {options.backend_dir, ExecutableFolder(), std::string(PAGODA_MODULE_DIR)}) {
    if (!folder.empty()) paths.push_back(absl::StrCat(folder, "/", kCudaModuleFile));
  }
  return paths;
}

absl::Status NoModule(absl::StatusCode code, const std::string& message) {
  return WithDeviceFault(absl::Status(code, message), DeviceFault::kNoModule);
}

absl::Status ModuleMissing(const std::vector<std::string>& paths) {
  return NoModule(
      absl::StatusCode::kNotFound,
      absl::StrCat(
          "device cuda needs the module ",
          kCudaModuleFile,
          ", which is in none of: ",
          absl::StrJoin(paths, ", "),
          "; install the pagoda-cuda package, or name the module's folder with --backend-dir"));
}

absl::Status ModuleUnloadable(absl::string_view path, absl::string_view reason) {
  const absl::string_view hint =
      absl::StrContains(reason, "libcuda.so")
          ? "; the NVIDIA driver is not installed on this machine (nvidia-smi comes with it)"
          : "";
  return NoModule(absl::StatusCode::kFailedPrecondition,
                  absl::StrCat("cannot load ", path, ": ", reason, hint));
}

absl::Status ModuleMismatch(absl::string_view path, uint64_t abi) {
  return NoModule(absl::StatusCode::kFailedPrecondition,
                  absl::StrCat(path,
                               " was built for another version of pagoda (interface ",
                               absl::Hex(abi),
                               ", expected ",
                               absl::Hex(kCudaModuleAbi),
                               "); install the pagoda-cuda package of the same version"));
}

// The module stays loaded for the life of the process: its CUDA context and callbacks cannot be
// unloaded safely.
absl::StatusOr<std::unique_ptr<Backend>> OpenCuda(const BackendOptions& options) {
  const std::vector<std::string> paths = ModulePaths(options);
  for (const std::string& path : paths) {
    if (access(path.c_str(), F_OK) != 0) continue;
    void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) return ModuleUnloadable(path, dlerror());
    auto* abi = reinterpret_cast<CudaModuleAbiFn*>(dlsym(module, kCudaModuleAbiSymbol));
    auto* create = reinterpret_cast<CudaModuleCreateFn*>(dlsym(module, kCudaModuleCreateSymbol));
    if (abi == nullptr || create == nullptr) {
      return ModuleUnloadable(path, "it is not a module of pagoda (an exported symbol is missing)");
    }
    if (abi() != kCudaModuleAbi) return ModuleMismatch(path, abi());
    absl::StatusOr<std::unique_ptr<Backend>> backend =
        absl::InternalError("the module did not answer pagoda_cuda_module_create");
    create(options, &backend);
    return backend;
  }
  return ModuleMissing(paths);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(absl::string_view name,
                                                     const BackendOptions& options) {
  if (name == "cpu") return OpenCpuBackend(options);
  if (name == "cuda") return OpenCuda(options);
  return absl::InvalidArgumentError(
      absl::StrCat("device '", name, "' is unknown; expected cpu or cuda"));
}

}  // namespace pagoda::kernels
