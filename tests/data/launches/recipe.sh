#!/bin/bash
set -eu -o pipefail
FW_VERSION=26.04.01
GPU_TYPE=${GPU_TYPE:?GPU_TYPE is a required variable.}
GPU_TYPE=${GPU_TYPE,,}
NUM_GPUS=${NUM_GPUS:?NUM_GPUS is a required variable.}
DTYPE=${DTYPE:-fp8}
OVERRIDES="${OVERRIDES:-}"
if [[ $DTYPE == "fp8" ]]; then
    if [[ $GPU_TYPE == "h100" ]]; then RECIPE=cs; else RECIPE=mx; fi
    OVERRIDES+=" --compute_dtype fp8_$RECIPE "
else
    OVERRIDES+=" --compute_dtype $DTYPE "
fi
if { [[ $GPU_TYPE == "b200" ]] || [[ $GPU_TYPE == "b300" ]]; } && ((NUM_GPUS >= 256)); then
    OVERRIDES+=" -gb $((NUM_GPUS * 6)) "
fi
if [[ -n ${VP-} ]]; then
    OVERRIDES+=" -vp $VP "
fi
python scripts/performance/setup_experiment.py --model_family_name llama --model_recipe_name llama31_405b \
    --gpu $GPU_TYPE --num_gpus $NUM_GPUS --max_steps 50 $OVERRIDES --account $ACCOUNT
