export PYTHONUNBUFFERED=1
go() { echo "== $NET $*"; env "$@" timeout 70 python benchmarks/scaling.py --net $NET --devices 12 --turns 2 --seconds 2.5 --contenders $C 2>/dev/null | grep -E "images/s:|limit_f" ; }
C="purine limit ddp"
NET=lenet go A=1
C="purine limit"
NET=googlenet go A=1
