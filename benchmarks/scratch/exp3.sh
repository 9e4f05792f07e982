export PYTHONUNBUFFERED=1
go() { echo "== $NET $*"; env "$@" timeout 60 python benchmarks/scaling.py --net $NET --devices 12 --turns 2 --seconds 2.5 --contenders $C 2>/dev/null | grep -E "images/s:|limit_f" ; }
C="purine limit"
NET=lenet go A=1
C="purine"
NET=googlenet go A=1
NET=googlenet go MALLOC_TOP_PAD_=67108864 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_MMAP_THRESHOLD_=33554432
NET=googlenet go MALLOC_ARENA_MAX=1 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_MMAP_THRESHOLD_=1073741824
NET=googlenet go MALLOC_ARENA_MAX=1 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_MMAP_THRESHOLD_=1073741824 THP_MEM_ALLOC_ENABLE=0
