#!/bin/bash
#SBATCH --array=0-3
#SBATCH --gpus=1
#SBATCH --time=01:00:00
#SBATCH --signal=B:TERM@60
# Many runs on a SLURM cluster: every task of the array works through the same suite in the same folder.
#
#   sbatch examples/slurm_array.sh table1-n3 /shared/table1-n3 --data-dir /shared/data
#
# A run is locked by the task that trains it, and the others pass over it. When the budget is spent, or SLURM sends
# SIGTERM 60 s before the end, the runs are saved; the same line goes on with them. A task ends with 0 (all done, or
# its budget spent), 5 (other tasks hold the rest) or 143 (saved after SIGTERM).
set -eu
if [ $# -lt 2 ]; then
    echo "usage: sbatch $0 SUITE FOLDER [options of nonloc reproduce]" >&2
    exit 2
fi
suite=$1 folder=$2
shift 2
# The shell becomes the command, so that the signal reaches it.
exec nonloc reproduce "$suite" --output "$folder" --budget "${NONLOC_BUDGET:-55m}" --quiet "$@"
