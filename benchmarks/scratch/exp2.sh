export PYTHONUNBUFFERED=1
go() { echo "== $NET $*"; env "$@" timeout 80 python benchmarks/scaling.py --net $NET --devices 12 --turns 2 --seconds 3 --contenders $C 2>/dev/null | grep -E "images/s:|limit_f" ; }
C="purine limit"
NET=googlenet go A=1
NET=lenet go A=1
NET=alexnet go A=1
C="purine"
NET=googlenet go THP_MEM_ALLOC_ENABLE=0
NET=alexnet go THP_MEM_ALLOC_ENABLE=0
