// A device that behaves as CUDA does where it matters, and a backend that behaves as NCCL does, on a CPU build of
// torch. Its settings are environment variables, which standin.py lists.
//
// Tensors are really of device type "cuda" (the type is free in a CPU build): mixing them with host tensors is refused.
// What writes into given memory (in-place, out=, copies) goes into a queue per stream and runs later, on its thread;
// the host waits only where it would on CUDA: reading values, pageable copies, synchronising, a full launch queue. What
// makes new outputs without an out= form drains the stream first: there the host waits where CUDA's would not.
// Backend "standin": forming is collective, by the store, takes STANDIN_FORM_S more seconds and has no bound; work runs
// on a stream of its own; wait() makes the current stream wait, not the host; a lost peer or another shape hangs until
// abort(); aborted, it refuses further work; a watchdog ends the process when a collective exceeds its time.
#include <ATen/ATen.h>
#include <torch/csrc/Event.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <future>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <list>
#include <thread>
#include <unordered_set>

namespace py = pybind11;
using Clock = std::chrono::steady_clock;
using at::Tensor;
using c10::Device;
using c10::DeviceType;
using c10::Stream;

static double seconds(const char* name, double otherwise) {
  auto v = std::getenv(name);
  return v ? std::atof(v) : otherwise;
}
static void nap(double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }

struct NoGil {  // the GIL let go of, where this thread has it
  PyThreadState* state = nullptr;
  NoGil() {
    if (Py_IsInitialized() && PyGILState_Check()) state = PyEval_SaveThread();
  }
  ~NoGil() {
    if (state) PyEval_RestoreThread(state);
  }
};

// -- streams and events ---------------------------------------------------------------------------------------------
struct Event {
  std::mutex m;
  std::condition_variable cv;
  bool done = false;
  Clock::time_point at;
  void set() {
    {
      std::lock_guard<std::mutex> l(m);
      done = true;
      at = Clock::now();
    }
    cv.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> l(m);
    cv.wait(l, [&] { return done; });
  }
  bool query() {
    std::lock_guard<std::mutex> l(m);
    return done;
  }
};
using EventP = std::shared_ptr<Event>;
static std::atomic<long> host_waits{0}, launched{0}, drained{0}, communicators{0};
static std::atomic<long long> host_waited_us{0};

struct Queue {
  std::mutex m;
  std::condition_variable cv;
  std::deque<std::function<void()>> items;
  uint64_t in = 0, out = 0;
  bool on = false;
  void push(std::function<void()> f) {
    NoGil g;
    std::unique_lock<std::mutex> l(m);
    if (!on) {
      on = true;
      std::thread([this] { run(); }).detach();
    }
    cv.wait(l, [&] { return in - out < 1024; });  // CUDA's launch queue
    items.push_back(std::move(f));
    ++in;
    ++launched;
    cv.notify_all();
  }
  void run() {
    for (;;) {
      std::function<void()> f;
      {
        std::unique_lock<std::mutex> l(m);
        cv.wait(l, [&] { return !items.empty(); });
        f = std::move(items.front());
        items.pop_front();
      }
      try {
        f();
      } catch (const std::exception& e) { fprintf(stderr, "standin: asynchronous error: %s\n", e.what()); }
      f = nullptr;
      {
        std::lock_guard<std::mutex> l(m);
        ++out;
      }
      cv.notify_all();
    }
  }
  void drain() {
    NoGil g;
    auto t = Clock::now();
    std::unique_lock<std::mutex> l(m);
    auto until = in;
    if (out < until) {
      ++host_waits;
      cv.wait(l, [&] { return out >= until; });
      host_waited_us += std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - t).count();
    }
  }
  bool idle() {
    std::lock_guard<std::mutex> l(m);
    return out == in;
  }
};
constexpr int STREAMS = 64;
static Queue* queues = new Queue[STREAMS];
static std::atomic<int> next_stream{1};
static thread_local c10::StreamId current = 0;
static Stream stream_of(c10::StreamId id) { return Stream(Stream::UNSAFE, Device(DeviceType::CUDA, 0), id); }
static Queue& here() { return queues[current]; }
constexpr int POOLED = 8;  // streams that programs get, one after the other; communicators have the others
static c10::StreamId new_stream() { return 1 + (next_stream++ - 1) % POOLED; }
static std::mutex given_back_by;
static std::vector<c10::StreamId> given_back;
static c10::StreamId own_stream() {
  static int next = POOLED + 1;
  std::lock_guard<std::mutex> l(given_back_by);
  if (given_back.empty()) return next < STREAMS ? next++ : STREAMS - 1;
  auto id = given_back.back();
  given_back.pop_back();
  return id;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return Device(DeviceType::CUDA, 0); }
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return stream_of(current); }
  Stream getDefaultStream(Device) const override { return stream_of(0); }
  Stream getStreamFromGlobalPool(Device, bool) const override { return stream_of(new_stream()); }
  Stream getNewStream(Device, int) const override { return stream_of(new_stream()); }
  Stream exchangeStream(Stream s) const override {
    auto old = stream_of(current);
    current = s.id();
    return old;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void destroyEvent(void* e, const c10::DeviceIndex) const noexcept override { delete static_cast<EventP*>(e); }
  void record(void** e, const Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    auto ev = std::make_shared<Event>();
    if (*e)
      *static_cast<EventP*>(*e) = ev;
    else
      *e = new EventP(ev);
    queues[s.id()].push([ev] { ev->set(); });
  }
  void block(void* e, const Stream& s) const override {
    if (e) {
      auto ev = *static_cast<EventP*>(e);
      queues[s.id()].push([ev] { ev->wait(); });
    }
  }
  bool queryEvent(void* e) const override { return !e || (*static_cast<EventP*>(e))->query(); }
  bool queryStream(const Stream& s) const override { return queues[s.id()].idle(); }
  void synchronizeStream(const Stream& s) const override { queues[s.id()].drain(); }
  void synchronizeEvent(void* e) const override {
    if (!e) return;
    NoGil g;
    auto t = Clock::now();
    auto ev = *static_cast<EventP*>(e);
    if (!ev->query()) {
      ++host_waits;
      ev->wait();
      host_waited_us += std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - t).count();
    }
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    for (int i = 0; i < STREAMS; ++i) queues[i].drain();
  }
  double elapsedTime(void* a, void* b, const c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>((*static_cast<EventP*>(b))->at - (*static_cast<EventP*>(a))->at)
        .count();
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

// -- memory ---------------------------------------------------------------------------------------------------------
// As under CUDA's caching allocator: what has been freed stays reserved, for torch alone, until empty_cache().
// A communicator takes memory beside it, STANDIN_COMM_MB, and fails where too little is left (STANDIN_MEMORY_MB).
static std::atomic<long long> held{0}, peak{0}, reserved{0}, of_communicators{0};
static double room() { return 1e6 * seconds("STANDIN_MEMORY_MB", 1e9) - static_cast<double>(of_communicators.load()); }
static std::mutex pins;
static std::unordered_set<const void*> pinned;
static std::atomic<long long> pinned_bytes{0}, pinned_peak{0}, read_bytes{0};
struct Memory final : at::Allocator {
  at::DataPtr allocate(size_t n) override {
    long long wanted = held + static_cast<long long>(n);
    if (static_cast<double>(wanted) > room())
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", n / 1e6,
                       " MB of the stand-in's memory");
    void* p = nullptr;
    if (n && posix_memalign(&p, 64, n)) throw std::bad_alloc();
    auto* info = new std::pair<void*, size_t>(p, n);
    held += n;
    if (held > peak) peak = held.load();
    if (held > reserved) reserved = held.load();
    if (static_cast<double>(reserved.load()) > room())
      reserved = held.load();  // the allocator empties its cache by itself
    return {p, info,
            [](void* c) {
              auto* i = static_cast<std::pair<void*, size_t>*>(c);
              held -= i->second;
              free(i->first);
              delete i;
            },
            Device(DeviceType::CUDA, 0)};
  }
  at::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* d, const void* s, std::size_t n) const override {
    here().drain();
    memcpy(d, s, n);
  }
};
static Memory memory;
REGISTER_ALLOCATOR(DeviceType::CUDA, &memory)
struct Pinned final : at::Allocator {
  at::DataPtr allocate(size_t n) override {
    void* p = nullptr;
    if (n && posix_memalign(&p, 4096, n)) throw std::bad_alloc();
    {
      std::lock_guard<std::mutex> l(pins);
      pinned.insert(p);
      pinned_bytes += n;
      pinned_peak = std::max(pinned_peak.load(), pinned_bytes.load());
    }
    return {p, new std::pair<void*, size_t>(p, n),
            [](void* c) {
              auto* i = static_cast<std::pair<void*, size_t>*>(c);
              {
                std::lock_guard<std::mutex> l(pins);
                pinned.erase(i->first);
                pinned_bytes -= i->second;
              }
              free(i->first);
              delete i;
            },
            Device(DeviceType::CPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* d, const void* s, std::size_t n) const override { memcpy(d, s, n); }
};
static Pinned pinned_memory;
static bool is_pinned(const Tensor& t) {
  std::lock_guard<std::mutex> l(pins);
  return pinned.count(t.storage().data()) > 0;
}

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isAvailable() const override { return true; }
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* p) const override {
    std::lock_guard<std::mutex> l(pins);
    return pinned.count(p) > 0;
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
};
namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, ::Hooks)
}

// -- operators ------------------------------------------------------------------------------------------------------
static Tensor tensor_on(const Tensor& t, DeviceType kind,
                        at::Allocator* allocator) {  // the same memory, another device
  auto* keep = new c10::Storage(t.storage());
  c10::Storage storage(c10::Storage::use_byte_size_t(), keep->nbytes(),
                       at::DataPtr(
                           const_cast<void*>(keep->data()), keep, [](void* c) { delete static_cast<c10::Storage*>(c); },
                           kind == DeviceType::CPU ? Device(kind) : Device(kind, 0)),
                       allocator, false);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(kind == DeviceType::CPU ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA),
      t.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return made;
}
static Tensor at_host(const Tensor& t) {
  return t.defined() && t.is_cuda() ? tensor_on(t, DeviceType::CPU, nullptr) : t;
}
static Tensor on_device(const Tensor& t) {
  return t.defined() && t.is_cpu() ? tensor_on(t, DeviceType::CUDA, &memory) : t;
}

static c10::IValue mapped(const c10::IValue& v, Tensor (*f)(const Tensor&)) {
  if (v.isTensor()) return f(v.toTensor());
  if (v.isTensorList()) {
    c10::List<Tensor> out;
    for (const Tensor& t : v.toTensorVector()) out.push_back(f(t));
    return out;
  }
  if (v.isList()) {
    auto given = v.toList();
    if (given.empty()) return v;
    bool tensors = false;
    for (const c10::IValue& e : given) tensors = tensors || e.isTensor();
    if (!tensors) return v;
    c10::List<std::optional<Tensor>> out;
    for (const c10::IValue& e : given)
      out.push_back(e.isTensor() ? std::optional<Tensor>(f(e.toTensor())) : std::nullopt);
    return out;
  }
  if (v.isDevice()) return c10::IValue(v.toDevice().is_cuda() ? Device(DeviceType::CPU) : v.toDevice());
  return v;
}
static void check_kinds(const c10::OperatorHandle& op, const std::vector<c10::IValue>& args) {
  auto check = [&](const Tensor& t) {
    if (t.defined() && t.is_cpu() && t.dim() > 0 && op.schema().name() != "aten::index" &&
        op.schema().name() != "aten::index_put_" && op.schema().name() != "aten::_index_put_impl_")
      TORCH_CHECK(false,
                  "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (",
                  op.schema().name(), ")");
  };
  for (auto& v : args) {
    if (v.isTensor())
      check(v.toTensor());
    else if (v.isTensorList())
      for (const Tensor& t : v.toTensorVector()) check(t);
  }
}
static void compute(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  at::AutoDispatchBelowADInplaceOrView guard;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}
static void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto given = schema.arguments().size(), results = schema.returns().size();
  auto begin = stack->end() - static_cast<long>(given);
  std::vector<c10::IValue> args(begin, stack->end());
  check_kinds(op, args);
  std::vector<size_t> written;
  bool late = true;
  for (size_t i = 0; i < given; ++i) {
    auto* alias = schema.arguments()[i].alias_info();
    if (alias && alias->isWrite()) {
      written.push_back(i);
      if (args[i].isTensor() && args[i].toTensor().defined() && args[i].toTensor().numel() == 0) late = false;
    }
  }
  for (auto& r : schema.returns())
    if (!r.alias_info() || !r.alias_info()->isWrite()) late = false;
  if (written.empty()) late = false;
  if (late) {
    torch::jit::Stack meant;  // the memory as it is at the launch: a tensor may be given other memory before it runs
    for (auto& v : args) meant.push_back(mapped(v, at_host));
    here().push([op, meant] {
      auto s = meant;
      compute(op, s);
    });
    stack->erase(begin, stack->end());
    size_t next = 0;
    for (auto& r : schema.returns()) {  // the arguments that are written, in their order
      (void)r;
      stack->push_back(args[written[std::min(next++, written.size() - 1)]]);
    }
    return;
  }
  ++drained;
  here().drain();
  torch::jit::Stack s;
  for (auto& v : args) s.push_back(mapped(v, at_host));
  std::vector<c10::IValue> sent(s.begin(), s.end());
  compute(op, s);
  for (auto i : written)
    if (args[i].isTensor() && args[i].toTensor().defined() && args[i].toTensor().is_cuda()) {
      auto now = sent[i].toTensor();
      auto* impl = args[i].toTensor().unsafeGetTensorImpl();
      if (now.sizes() != args[i].toTensor().sizes() || now.storage().data() != args[i].toTensor().storage().data()) {
        impl->set_storage_keep_dtype(on_device(now).storage());
        impl->set_sizes_and_strides(now.sizes(), now.strides(), now.storage_offset());
      }
    }
  stack->erase(begin, stack->end());
  size_t next = 0;
  for (size_t i = 0; i < results; ++i) {
    auto* alias = schema.returns()[i].alias_info();
    if (alias && alias->isWrite())
      stack->push_back(args[written[std::min(next++, written.size() - 1)]]);
    else
      stack->push_back(mapped(s[i], on_device));
  }
}
static Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                    std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}
static Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}
static Tensor strided(const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  auto out = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(self.storage()),
                                                      self.key_set(), self.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset.value_or(self.storage_offset()));
  return out;
}
static Tensor view(const Tensor& self, at::IntArrayRef size) {
  auto wanted = at::infer_size_dv(size, self.numel());
  auto stride = at::detail::computeStride(self.sizes(), self.strides(), wanted);
  TORCH_CHECK(stride.has_value(), "view size is not compatible with input tensor's size and stride");
  return strided(self, wanted, *stride, self.storage_offset());
}
static Tensor reshape_alias(const Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return strided(self, size, stride, self.storage_offset());
}
static const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  here().drain();
  auto* impl = self.unsafeGetTensorImpl();
  auto bytes = at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(), self.storage_offset());
  if (bytes > self.storage().nbytes()) {
    auto fresh = memory.allocate(bytes);
    if (self.storage().nbytes()) memcpy(fresh.get(), self.storage().data(), self.storage().nbytes());
    impl->unsafe_storage().set_data_ptr_noswap(std::move(fresh));
    impl->unsafe_storage().set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
  return self;
}
// What has been launched goes on in the memory that it was given; nobody waits for it.
static void resize_storage(const Tensor& holder, int64_t bytes) {
  auto* impl = holder.storage().unsafeGetStorageImpl();
  auto fresh = memory.allocate(bytes);
  auto kept = std::min<size_t>(bytes, impl->nbytes());
  if (kept) {
    here().drain();
    memcpy(fresh.get(), impl->data(), kept);
  }
  auto before = std::make_shared<at::DataPtr>(impl->set_data_ptr(std::move(fresh)));
  impl->set_nbytes(bytes);
  for (int i = 0; i < STREAMS; ++i)
    if (queues[i].on) queues[i].push([before] {});
}
static Tensor& set_tensor(Tensor& self, const Tensor& other) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(other.storage());
  impl->set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
  return self;
}
static Tensor& set_storage(Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size,
                           at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  std::vector<int64_t> steps(stride.begin(), stride.end());
  if (steps.empty() && !size.empty()) {
    steps.resize(size.size());
    int64_t s = 1;
    for (size_t i = size.size(); i--;) {
      steps[i] = s;
      s *= std::max<int64_t>(1, size[i]);
    }
  }
  impl->set_sizes_and_strides(size, steps, offset);
  return self;
}
static void copy_now(const Tensor& to, const Tensor& from) {
  at::AutoDispatchBelowADInplaceOrView guard;
  to.copy_(from);
}
static Tensor& copy_(Tensor& self, const Tensor& src, bool non_blocking) {
  Tensor to = self, from = src.sizes() == self.sizes() ? src : src.expand(self.sizes());
  if (self.is_cuda() && src.is_cuda()) {
    here().push([to = at_host(to), from = at_host(from)] { copy_now(to, from); });
    return self;
  }
  bool whole = is_pinned(self.is_cuda() ? src : self);
  if (src.is_cuda()) read_bytes += to.nbytes();
  if (self.is_cuda() && non_blocking && !whole) from = from.clone();  // CUDA stages what is pageable
  here().push([to = at_host(to), from = at_host(from)] {
    nap(static_cast<double>(to.nbytes()) / 1e6 / seconds("STANDIN_COPY_MB_S", 1e9));
    copy_now(to, from);
  });
  if (!non_blocking || (!self.is_cuda() && !whole)) here().drain();
  return self;
}
static void record_stream(Tensor&, at::Stream) {}
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("resize_", resize_);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("copy_", copy_);
  m.impl("record_stream", record_stream);
}

// -- the backend ----------------------------------------------------------------------------------------------------
using c10d::OpType;
using c10d::Work;
struct Pending final : Work {
  EventP end = std::make_shared<Event>();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::shared_ptr<std::atomic<bool>> failed = std::make_shared<std::atomic<bool>>(false);
  Clock::time_point due;
  Pending(int rank, OpType kind) : Work(rank, kind) {}
  bool isCompleted() override { return end->query(); }
  bool isSuccess() const override { return !failed->load(); }
  void synchronize() override {
    auto e = end;
    here().push([e] { e->wait(); });
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void abort() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
};
static std::mutex watched_by;
static std::list<c10::intrusive_ptr<Pending>> watched;
static bool watching = false;
static void watch(c10::intrusive_ptr<Pending> w) {
  std::lock_guard<std::mutex> l(watched_by);
  watched.push_back(std::move(w));
  if (watching) return;
  watching = true;
  std::thread([] {
    for (;;) {
      nap(0.2);
      std::list<c10::intrusive_ptr<Pending>> gone;
      {
        std::lock_guard<std::mutex> l(watched_by);
        for (auto i = watched.begin(); i != watched.end();) {
          auto n = std::next(i);
          if ((*i)->end->query())
            gone.splice(gone.end(), watched, i);
          else if (Clock::now() > (*i)->due) {
            fprintf(stderr, "standin: watchdog: a collective has taken longer than its time: the process ends\n");
            std::abort();
          }
          i = n;
        }
      }
    }
  }).detach();
}
struct StandIn final : c10d::Backend {
  c10::intrusive_ptr<c10d::Store> store;
  py::object make;
  c10::intrusive_ptr<c10d::Backend> inner;
  std::mutex forming;
  bool formed = false;
  std::atomic<long long> own_memory{0};
  std::atomic<bool> released{false};
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  c10::StreamId stream = 0;
  std::chrono::milliseconds limit;
  uint64_t number = 0;
  StandIn(c10::intrusive_ptr<c10d::Store> s, int rank, int size, std::chrono::milliseconds t, py::object m)
      : Backend(rank, size), store(std::move(s)), make(std::move(m)), limit(t) {}
  ~StandIn() override {
    py::gil_scoped_acquire g;
    make = py::object();
  }
  const std::string getBackendName() const override { return "standin"; }
  void setTimeout(std::chrono::milliseconds t) override { limit = t; }
  void refuse_aborted() {
    TORCH_CHECK_WITH(DistBackendError, !aborted->load(), "NCCL communicator was aborted on rank ", rank_, ".");
  }
  void form() {  // as ncclCommInitRank: all of its ranks, and no bound
    NoGil g;
    std::lock_guard<std::mutex> l(forming);
    refuse_aborted();
    if (formed) return;
    auto t = Clock::now();
    try {
      if (rank_ == 0)
        store->set("ncclid", std::vector<uint8_t>(128, 7));
      else
        store->get("ncclid");
      store->add("boot", 1);
      while (store->add("boot", 0) < size_) nap(0.002);
    } catch (const std::exception& e) {
      TORCH_CHECK_WITH(DistBackendError, false, "NCCL error: setting up NCCL communicator: ", e.what());
    }
    nap(seconds("STANDIN_FORM_S", 0.0));
    own_memory = static_cast<long long>(1e6 * seconds("STANDIN_COMM_MB", 0.0));
    TORCH_CHECK_WITH(DistBackendError, static_cast<double>(reserved + own_memory) <= room(),
                     "NCCL error: unhandled cuda error: Failed to CUDA calloc ", own_memory, " bytes");
    of_communicators += own_memory;
    {
      py::gil_scoped_acquire a;
      inner = make(store, rank_, size_).cast<c10::intrusive_ptr<c10d::Backend>>();
    }
    stream = own_stream();
    formed = true;
    ++communicators;
    if (std::getenv("STANDIN_TALK"))
      fprintf(stderr, "standin: rank %d of %d formed in %.3f s\n", rank_, size_,
              std::chrono::duration<double>(Clock::now() - t).count());
  }
  using Run = std::function<c10::intrusive_ptr<Work>(c10d::Backend&)>;
  c10::intrusive_ptr<Work> launch(OpType kind, std::vector<Tensor> all, std::vector<Tensor> out, Run run,
                                  std::function<void()> after = nullptr) {
    for (auto& t : all) TORCH_CHECK(t.is_cuda(), "No backend type associated with device type cpu");
    refuse_aborted();
    form();
    auto work = c10::make_intrusive<Pending>(rank_, kind);
    work->due = Clock::now() + limit;
    ++number;
    auto ready = std::make_shared<Event>();
    here().push([ready] { ready->set(); });
    int64_t count = 0;
    for (auto& t : all) count += t.numel();
    auto gone = aborted;
    auto pg = inner;
    auto end = work->end;
    auto failed = work->failed;
    int size = size_;
    auto which = (int64_t)kind * 1000003 + count;
    queues[stream].push([=] {
      while (!ready->query()) {
        if (*gone) break;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      bool well = !*gone;
      if (well) {
        auto result = std::make_shared<std::promise<bool>>();
        auto waits = result->get_future();
        std::thread([=] {  // what gloo does cannot be ended: it is left alone
          try {
            at::AutoDispatchBelowADInplaceOrView guard;
            std::vector<Tensor> mine{at::tensor({which}, at::kLong)};
            std::vector<std::vector<Tensor>> theirs{{}};
            for (int i = 0; i < size; ++i) theirs[0].push_back(at::zeros({1}, at::kLong));
            if (size > 1) {
              pg->allgather(theirs, mine)->wait();
              for (auto& t : theirs[0])
                if (t.item<int64_t>() != which) {
                  fprintf(stderr, "standin: collectives do not match: hangs\n");
                  result->set_value(false);
                  return;
                }
            }
            auto w = run(*pg);
            if (w) w->wait();
            if (after) after();
            result->set_value(true);
          } catch (const std::exception& e) {
            if (std::getenv("STANDIN_TALK"))
              fprintf(stderr, "standin: a peer is lost, and nothing says so (%s)\n", e.what());
            result->set_value(false);
          }
        })
            .detach();
        while (waits.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
          if (*gone) {
            well = false;
            break;
          }
        if (well && !waits.get()) {
          well = false;
          while (!*gone) nap(0.005);
        }  // a kernel that spins
      }
      if (!well)  // what an ended kernel leaves behind is not to be used
        for (auto& t : out)
          if (auto h = at_host(t); h.is_floating_point()) h.fill_(std::numeric_limits<double>::quiet_NaN());
      *failed = !well;
      end->set();
    });
    work->future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                            std::vector<Device>{Device(DeviceType::CUDA, 0)});
    {
      c10::MultiStreamGuard s(stream_of(stream));
      work->future->markCompleted(c10::IValue(out));
    }
    watch(work);
    return work;
  }
  c10::intrusive_ptr<Work> allreduce(std::vector<Tensor>& t, const c10d::AllreduceOptions& o) override {
    auto h = at_host(t[0]);
    auto opts = o;
    auto size = size_;
    bool mean = o.reduceOp == c10d::ReduceOp::AVG;
    if (mean) opts.reduceOp = c10d::ReduceOp::SUM;
    return launch(
        OpType::ALLREDUCE, {t[0]}, t,
        [h, opts](c10d::Backend& b) {
          std::vector<Tensor> v{h};
          return b.allreduce(v, opts);
        },
        mean ? std::function<void()>([h, size]() mutable { h.div_(size); }) : nullptr);
  }
  c10::intrusive_ptr<Work> broadcast(std::vector<Tensor>& t, const c10d::BroadcastOptions& o) override {
    auto h = at_host(t[0]);
    return launch(OpType::BROADCAST, {t[0]}, t, [h, o](c10d::Backend& b) {
      std::vector<Tensor> v{h};
      return b.broadcast(v, o);
    });
  }
  c10::intrusive_ptr<Work> allgather(std::vector<std::vector<Tensor>>& out, std::vector<Tensor>& in,
                                     const c10d::AllgatherOptions& o) override {
    std::vector<Tensor> outs;
    for (auto& t : out[0]) outs.push_back(at_host(t));
    auto h = at_host(in[0]);
    return launch(OpType::ALLGATHER, {in[0]}, out[0], [outs, h, o](c10d::Backend& b) {
      std::vector<std::vector<Tensor>> v{outs};
      std::vector<Tensor> i{h};
      return b.allgather(v, i, o);
    });
  }
  c10::intrusive_ptr<Work> _allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions& o) override {
    std::vector<Tensor> parts;
    for (auto& p : at_host(out).view({-1}).chunk(size_)) parts.push_back(p);
    auto h = at_host(in).reshape({-1});
    return launch(OpType::_ALLGATHER_BASE, {in}, {out}, [parts, h, o](c10d::Backend& b) {
      std::vector<std::vector<Tensor>> v{parts};
      std::vector<Tensor> i{h};
      return b.allgather(v, i, o);
    });
  }
  c10::intrusive_ptr<Work> _reduce_scatter_base(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions& o) override {
    auto ho = at_host(out), hi = at_host(in);
    auto rank = rank_, size = size_;
    bool mean = o.reduceOp == c10d::ReduceOp::AVG;
    auto all = std::make_shared<Tensor>();
    return launch(
        OpType::_REDUCE_SCATTER_BASE, {in}, {out},
        [hi, all](c10d::Backend& b) {
          *all = hi.clone();
          std::vector<Tensor> v{*all};
          return b.allreduce(v, c10d::AllreduceOptions());
        },
        [=]() mutable {
          ho.view({-1}).copy_(all->view({-1}).chunk(size)[rank]);
          if (mean) ho.div_(size);
        });
  }
  // Of several tensors: one after the other on the communicator's stream, so that the last one's end is all ones'.
  c10::intrusive_ptr<Work> allgather_into_tensor_coalesced(std::vector<Tensor>& out, std::vector<Tensor>& in,
                                                           const c10d::AllgatherOptions& o) override {
    c10::intrusive_ptr<Work> last;
    for (size_t i = 0; i < in.size(); ++i) last = _allgather_base(out[i], in[i], o);
    return last;
  }
  c10::intrusive_ptr<Work> reduce_scatter_tensor_coalesced(std::vector<Tensor>& out, std::vector<Tensor>& in,
                                                           const c10d::ReduceScatterOptions& o) override {
    c10::intrusive_ptr<Work> last;
    for (size_t i = 0; i < in.size(); ++i) last = _reduce_scatter_base(out[i], in[i], o);
    return last;
  }
  c10::intrusive_ptr<Work> allreduce_coalesced(std::vector<Tensor>& all,
                                               const c10d::AllreduceCoalescedOptions& o) override {
    c10::intrusive_ptr<Work> last;
    for (auto& t : all) {
      std::vector<Tensor> one{t};
      last = allreduce(one, o);
    }
    return last;
  }
  c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions&) override {
    std::vector<Tensor> t{at::zeros({1}, at::TensorOptions().device(at::kCUDA))};
    return allreduce(t, c10d::AllreduceOptions());
  }
  void shutdown() override {  // waits for all that is under way, as ncclCommFinalize does
    NoGil g;
    if (formed) {
      if (!*aborted) queues[stream].drain();
      nap(seconds("STANDIN_CLOSE_S", 0.0));
    }
    *aborted = true;
    release();
  }
  void abort() override {
    *aborted = true;
    release();
  }
  void release() {
    if (!formed || released.exchange(true)) return;
    of_communicators -= own_memory.exchange(0);
    std::lock_guard<std::mutex> l(given_back_by);
    given_back.push_back(stream);
  }
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<StandIn, c10d::Backend, c10::intrusive_ptr<StandIn>>(m, "StandIn")
      .def(py::init([](c10::intrusive_ptr<c10d::Store> s, int r, int n, double t, py::object make) {
        return c10::make_intrusive<StandIn>(std::move(s), r, n, std::chrono::milliseconds((int64_t)(1000 * t)),
                                            std::move(make));
      }))
      .def("abort", [](StandIn& s) { s.abort(); })
      .def("set_timeout", [](StandIn& s, double t) { s.setTimeout(std::chrono::milliseconds((int64_t)(1000 * t))); });
  m.def("stream", [] { return current; });
  m.def("set_stream", [](int64_t id) {
    auto old = current;
    current = id;
    return old;
  });
  m.def("synchronize", [] {
    for (int i = 0; i < STREAMS; ++i) queues[i].drain();
  });
  m.def("resize_storage", [](const Tensor& t, int64_t n) { resize_storage(t, n); });
  m.def("elapsed_ms", [](py::object from, py::object to) {
    return ((THPEvent*)from.ptr())->event.elapsedTime(((THPEvent*)to.ptr())->event);
  });
  m.def("busy", [](double s) { here().push([s] { nap(s); }); });
  m.def("held", [] { return std::make_pair(held.load(), peak.load()); });
  m.def("reserved", [] { return reserved.load(); });
  m.def("of_communicators", [] { return of_communicators.load(); });
  m.def("empty_cache", [] { reserved = held.load(); });
  m.def("counts", [] {
    return py::dict(py::arg("launched") = launched.load(), py::arg("host_waits") = host_waits.load(),
                    py::arg("host_waited_s") = 1e-6 * (double)host_waited_us.load(),
                    py::arg("drained_ops") = drained.load(), py::arg("read_bytes") = read_bytes.load(),
                    py::arg("formed") = communicators.load(),
                    py::arg("pinned_peak") = pinned_peak.load());
  });
}
