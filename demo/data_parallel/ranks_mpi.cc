// Ranks started by an MPI launcher. Without MPI (DEMO_HAVE_MPI) there are none.
#include <absl/strings/str_format.h>

#include <cstdio>

#include "ranks.h"

#ifdef DEMO_HAVE_MPI

#include <mpi.h>

#include <cstdlib>

namespace demo {
namespace {

int rank_in(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

int size_of(MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  return size;
}

int rank_on_this_machine() {
  MPI_Comm here = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  const int rank = rank_in(here);
  MPI_Comm_free(&here);
  return rank;
}

// MPI ends the whole job if one of its calls fails.
class MpiRanks : public Ranks {
 public:
  MpiRanks(MPI_Comm comm, int number_here) : Ranks(rank_in(comm), size_of(comm), number_here), comm_(comm) {}
  ~MpiRanks() override {
    if (comm_ != MPI_COMM_WORLD) MPI_Comm_free(&comm_);
  }
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  using Ranks::gather;
  void gather(const void* mine, std::size_t bytes, void* all) override {
    const int count = static_cast<int>(bytes);
    if (count == 0) {
      MPI_Barrier(comm_);
    } else {
      MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, comm_);
    }
  }

  std::unique_ptr<Ranks> first(int count) override {
    MPI_Comm part = MPI_COMM_NULL;
    MPI_Comm_split(comm_, rank() < count ? 0 : MPI_UNDEFINED, rank(), &part);
    return part == MPI_COMM_NULL ? nullptr : std::make_unique<MpiRanks>(part, number_here());
  }

 private:
  MPI_Comm comm_;
};

}  // namespace

int run_under_mpi(const std::function<int(Ranks&)>& train) {
  MPI_Init(nullptr, nullptr);
  int status = 0;
  {
    MpiRanks world(MPI_COMM_WORLD, rank_on_this_machine());
    status = train(world);
  }
  MPI_Finalize();
  return status;
}

}  // namespace demo

#else

namespace demo {

int run_under_mpi(const std::function<int(Ranks&)>&) {
  absl::FPrintF(stderr,
                "--mpi: this program was built without MPI (Debian: libopenmpi-dev); install it and build again\n");
  return 2;
}

}  // namespace demo

#endif
