// Preloaded into pagoda (LD_PRELOAD): makes calls fail as PAGODA_FAULTY_CALLS says, such as
// "serve new 1000 once": in a process whose first argument is that word, the thousandth call of the
// kind fails, or ("ever") that and all after it, counted from main on: what libraries do before it
// nobody can catch. Kinds: see kKinds.

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <new>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

enum Kind {
  kNew,
  kMmap,
  kOpen,
  kRead,
  kReceive,
  kWrite,
  kSend,
  kSocket,
  kPipe,
  kConnect,
  kAccept,
  kEpoll,
  kFork,
  kThread,
  kNumKinds
};
constexpr const char* kKinds[kNumKinds] = {"new",
                                           "mmap",
                                           "open",
                                           "read",
                                           "receive",
                                           "write",
                                           "send",
                                           "socket",
                                           "pipe",
                                           "connect",
                                           "accept",
                                           "epoll",
                                           "fork",
                                           "thread"};

int faulty_kind = -1;
long first_faulty = 0;
bool for_ever = false;
std::atomic<bool> is_in_main{false};
std::atomic<long> num_calls{0};

using MainFunction = int(int, char**, char**);
MainFunction* real_main = nullptr;
int MarkedMain(int argc, char** argv, char** environment) {
  is_in_main = true;
  return real_main(argc, argv, environment);
}

bool IsThisProcess(const char* role) {
  char arguments[4096] = {};
  FILE* file = std::fopen("/proc/self/cmdline", "r");
  if (file == nullptr) return false;
  const size_t size = std::fread(arguments, 1, sizeof arguments - 1, file);
  std::fclose(file);
  const size_t program = std::strlen(arguments) + 1;
  return program < size && std::strcmp(arguments + program, role) == 0;
}

__attribute__((constructor)) void Configure() {
  const char* text = std::getenv("PAGODA_FAULTY_CALLS");
  char role[16], kind[16], how[8];
  long first = 0;
  if (text == nullptr || std::sscanf(text, "%15s %15s %ld %7s", role, kind, &first, how) != 4) {
    return;
  }
  if (!IsThisProcess(role)) return;
  first_faulty = first;
  for_ever = std::strcmp(how, "ever") == 0;
  for (int i = 0; i < kNumKinds; ++i) {
    if (std::strcmp(kind, kKinds[i]) == 0) faulty_kind = i;
  }
}

bool Fails(Kind kind) {
  if (kind != faulty_kind || !is_in_main.load(std::memory_order_relaxed)) return false;
  const long call = num_calls.fetch_add(1, std::memory_order_relaxed) + 1;
  return call == first_faulty || (for_ever && call > first_faulty);
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// Of a function of C: `error` in errno when it is to fail, else the next one's answer.
#define PAGODA_FAULTY(kind, error, failure, name, ...)     \
  static auto* const next = Next<decltype(::name)>(#name); \
  if (Fails(kind)) {                                       \
    errno = error;                                         \
    return failure;                                        \
  }                                                        \
  return next(__VA_ARGS__)

void* Allocate(std::size_t size, std::size_t alignment) {
  while (true) {
    void* memory = nullptr;
    if (!Fails(kNew)) {
      memory = alignment == 0
                   ? std::malloc(size == 0 ? 1 : size)
                   : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    }
    if (memory != nullptr) return memory;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size, 0); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<std::size_t>(alignment));
}

extern "C" {

int __libc_start_main(MainFunction* main,
                      int argc,
                      char** argv,
                      void (*init)(),
                      void (*fini)(),
                      void (*end_of_loader)(),
                      void* stack_end) {
  real_main = main;
  return Next<decltype(__libc_start_main)>("__libc_start_main")(
      &MarkedMain, argc, argv, init, fini, end_of_loader, stack_end);
}

void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  PAGODA_FAULTY(kMmap, ENOMEM, MAP_FAILED, mmap, address, size, protection, flags, fd, offset);
}
int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  PAGODA_FAULTY(kOpen, EMFILE, -1, open, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  PAGODA_FAULTY(kOpen, EMFILE, -1, open64, path, flags, mode);
}
ssize_t read(int fd, void* buffer, size_t size) {
  PAGODA_FAULTY(kRead, EIO, -1, read, fd, buffer, size);
}
ssize_t pread(int fd, void* buffer, size_t size, off_t offset) {
  PAGODA_FAULTY(kRead, EIO, -1, pread, fd, buffer, size, offset);
}
ssize_t pread64(int fd, void* buffer, size_t size, off64_t offset) {
  PAGODA_FAULTY(kRead, EIO, -1, pread64, fd, buffer, size, offset);
}
ssize_t recv(int fd, void* buffer, size_t size, int flags) {
  PAGODA_FAULTY(kReceive, ECONNRESET, -1, recv, fd, buffer, size, flags);
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  PAGODA_FAULTY(kReceive, ECONNRESET, -1, recvmsg, fd, message, flags);
}
ssize_t write(int fd, const void* buffer, size_t size) {
  PAGODA_FAULTY(kWrite, ENOSPC, -1, write, fd, buffer, size);
}
ssize_t send(int fd, const void* buffer, size_t size, int flags) {
  PAGODA_FAULTY(kSend, EPIPE, -1, send, fd, buffer, size, flags);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  PAGODA_FAULTY(kSend, EPIPE, -1, sendmsg, fd, message, flags);
}
int socket(int domain, int type, int protocol) noexcept {
  PAGODA_FAULTY(kSocket, EMFILE, -1, socket, domain, type, protocol);
}
int pipe2(int* fds, int flags) noexcept { PAGODA_FAULTY(kPipe, EMFILE, -1, pipe2, fds, flags); }
int socketpair(int domain, int type, int protocol, int* fds) noexcept {
  PAGODA_FAULTY(kPipe, EMFILE, -1, socketpair, domain, type, protocol, fds);
}
int eventfd(unsigned initial, int flags) noexcept {
  PAGODA_FAULTY(kPipe, EMFILE, -1, eventfd, initial, flags);
}
int memfd_create(const char* name, unsigned flags) noexcept {
  PAGODA_FAULTY(kPipe, EMFILE, -1, memfd_create, name, flags);
}
int connect(int fd, const sockaddr* address, socklen_t size) {
  PAGODA_FAULTY(kConnect, EACCES, -1, connect, fd, address, size);
}
pid_t _Fork() noexcept { PAGODA_FAULTY(kFork, EAGAIN, -1, _Fork, ); }
int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  PAGODA_FAULTY(kAccept, EMFILE, -1, accept4, fd, address, size, flags);
}
int accept(int fd, sockaddr* address, socklen_t* size) {
  PAGODA_FAULTY(kAccept, EMFILE, -1, accept, fd, address, size);
}
int epoll_ctl(int epoll_fd, int operation, int fd, epoll_event* event) noexcept {
  PAGODA_FAULTY(kEpoll, ENOMEM, -1, epoll_ctl, epoll_fd, operation, fd, event);
}
int pthread_create(pthread_t* thread,
                   const pthread_attr_t* attributes,
                   void* (*function)(void*),
                   void* argument) noexcept {
  PAGODA_FAULTY(kThread, 0, EAGAIN, pthread_create, thread, attributes, function, argument);
}

}  // extern "C"
