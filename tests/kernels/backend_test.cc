#include "kernels/backend.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pagoda::kernels {
namespace {

using ::testing::HasSubstr;

class BackendTest : public testing::Test {
 protected:
  BackendTest() : folder_(testing::TempDir() + "pagoda_backend_test_" + std::to_string(getpid())) {
    mkdir(folder_.c_str(), 0700);
  }
  ~BackendTest() override {
    unlink((folder_ + "/pagoda_cuda.so").c_str());
    rmdir(folder_.c_str());
  }
  std::string folder_;
};

TEST_F(BackendTest, UnknownNameIsRefused) {
  const auto backend = OpenBackend("tpu", {});
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backend.status().message(), "device 'tpu' is unknown; expected cpu or cuda");
}

TEST_F(BackendTest, MissingModuleNamesEveryPlaceAndARemedy) {
  const auto backend = OpenBackend("cuda", {.backend_dir = folder_});
  if (backend.ok()) GTEST_SKIP() << "a cuda module is installed beside this test";
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr(folder_ + "/pagoda_cuda.so"));
  EXPECT_THAT(std::string(backend.status().message()), HasSubstr("--backend-dir"));
}

TEST_F(BackendTest, FileThatIsNoModuleSaysWhy) {
  std::ofstream(folder_ + "/pagoda_cuda.so") << "not a shared object";
  const auto backend = OpenBackend("cuda", {.backend_dir = folder_});
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(backend.status().message()),
              HasSubstr("cannot load " + folder_ + "/pagoda_cuda.so"));
}

TEST_F(BackendTest, CpuOptionsAreChecked) {
  EXPECT_EQ(OpenBackend("cpu", {.cpu_isa = "mmx"}).status().message(),
            "cpu_isa is 'mmx'; expected auto, scalar, avx2, avx512 or avx512_bf16");
  EXPECT_EQ(OpenBackend("cpu", {.cpu_threads = -1}).status().message(),
            "cpu_threads is -1; expected 0 to 1024");
}

TEST_F(BackendTest, CpuDescribesItself) {
  auto backend = OpenBackend("cpu", {.cpu_threads = 2, .cpu_isa = "scalar"});
  ASSERT_TRUE(backend.ok());
  EXPECT_EQ((*backend)->name(), "cpu");
  const auto info = (*backend)->Info();
  ASSERT_TRUE(info.ok());
  EXPECT_THAT(info->name, HasSubstr("scalar, 2 threads"));
  EXPECT_GT(info->free_memory_bytes, 0u);
  EXPECT_LE(info->free_memory_bytes, info->total_memory_bytes);
  EXPECT_EQ(*(*backend)->ActivationDType(DType::kBFloat16), DType::kFloat32);
  EXPECT_EQ((*backend)->ActivationDType(DType::kFloat16).status().message(),
            "dtype of weights on the cpu backend is float16; expected float32 or bfloat16");
  EXPECT_EQ((*backend)->BeginGraph().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(BackendTest, CpuMemoryIsZeroedAlignedAndCopied) {
  auto backend = std::move(OpenBackend("cpu", {.cpu_threads = 1})).value();
  for (const size_t size : {size_t{1}, size_t{4096}, size_t{5} << 20}) {
    auto buffer = backend->Allocate(size, "test");
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
    EXPECT_EQ(buffer->size_bytes(), size);
    const auto* bytes = buffer->as<unsigned char>();
    for (size_t i = 0; i < size; i += 1013) ASSERT_EQ(bytes[i], 0);
    const std::string text(size, 'x');
    ASSERT_TRUE(backend->CopyToDevice(buffer->data(), text.data(), size).ok());
    std::string back(size, ' ');
    ASSERT_TRUE(backend->CopyToHost(back.data(), buffer->data(), size).ok());
    EXPECT_EQ(back, text);
  }
  EXPECT_TRUE(backend->Allocate(0, "nothing").ok());
  EXPECT_THAT(std::string(backend->Allocate(size_t{1} << 60, "a huge cache").status().message()),
              HasSubstr("for a huge cache"));
  EXPECT_EQ(backend->CopyToHost(nullptr, &backend, 8).message(),
            "copy's destination is null; expected an array");
}

TEST_F(BackendTest, CpuEventsHavePassedWhenTheyAreRecorded) {
  auto backend = std::move(OpenBackend("cpu", {.cpu_threads = 1})).value();
  const auto event = backend->RecordEvent();
  ASSERT_TRUE(event.ok());
  EXPECT_TRUE(*backend->EventPassed(*event));
  EXPECT_FALSE(backend->EventPassed(*event + 1).ok());
  EXPECT_TRUE(backend->Synchronize().ok());
}

}  // namespace
}  // namespace pagoda::kernels
