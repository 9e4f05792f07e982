"""The fields of Caffe's messages and the names of its enums, as its documentation has them.

One line per message: `field:type`, with a star where the field may be repeated. A message with the
settings of a type of layer also names its field of `LayerParameter`; a field without a type is one
of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["ENUMS", "MESSAGES", "V1_TYPES"]

_ENUMS = """
Phase: TRAIN TEST
Backend: LEVELDB LMDB
VarianceNorm: FAN_IN FAN_OUT AVERAGE
Engine: DEFAULT CAFFE CUDNN
PoolMethod: MAX AVE STOCHASTIC
RoundMode: CEIL FLOOR
NormRegion: ACROSS_CHANNELS WITHIN_CHANNEL
EltwiseOp: PROD SUM MAX
HingeNorm: - L1 L2
ReductionOp: - SUM ASUM SUMSQ MEAN
Normalization: FULL VALID BATCH_SIZE NONE
DimCheckMode: STRICT PERMISSIVE
SnapshotFormat: HDF5 BINARYPROTO
SolverMode: CPU GPU
SolverType: SGD NESTEROV ADAGRAD RMSPROP ADADELTA ADAM
"""

_MESSAGES = """
BlobShape: dim:int64*
BlobProto: shape:BlobShape data:float* diff:float* num:int channels:int height:int width:int
FillerParameter: type:string value:float min:float max:float mean:float std:float sparse:int
    variance_norm:VarianceNorm
NetState: phase:Phase level:int stage:string*
NetStateRule: phase:Phase min_level:int max_level:int stage:string* not_stage:string*
NetParameter: name:string input:string* input_shape:BlobShape* input_dim:int* force_backward:bool
    state:NetState debug_info:bool layer:LayerParameter* layers:V1LayerParameter*
ParamSpec: name:string share_mode:DimCheckMode lr_mult:float decay_mult:float
TransformationParameter transform_param: scale:float mirror:bool crop_size:uint mean_file:string
    mean_value:float* force_color:bool force_gray:bool
LossParameter loss_param: ignore_label:int normalization:Normalization normalize:bool
AccuracyParameter accuracy_param: top_k:uint axis:int ignore_label:int
ArgMaxParameter argmax_param: out_max_val:bool top_k:uint axis:int
ConcatParameter concat_param: axis:int concat_dim:uint
BatchNormParameter batch_norm_param: use_global_stats:bool moving_average_fraction:float eps:float
BiasParameter bias_param: axis:int num_axes:int filler:FillerParameter
ClipParameter clip_param: min:float max:float
ContrastiveLossParameter contrastive_loss_param: margin:float legacy_version:bool
ConvolutionParameter convolution_param: num_output:uint bias_term:bool pad:uint* kernel_size:uint*
    stride:uint* dilation:uint* pad_h:uint pad_w:uint kernel_h:uint kernel_w:uint stride_h:uint
    stride_w:uint group:uint weight_filler:FillerParameter bias_filler:FillerParameter engine:Engine
    axis:int force_nd_im2col:bool
CropParameter crop_param: axis:int offset:uint*
DataParameter data_param: source:string batch_size:uint rand_skip:uint backend:Backend scale:float
    mean_file:string crop_size:uint mirror:bool force_encoded_color:bool prefetch:uint
DropoutParameter dropout_param: dropout_ratio:float scale_train:bool
DummyDataParameter dummy_data_param: data_filler:FillerParameter* shape:BlobShape* num:uint*
    channels:uint* height:uint* width:uint*
EltwiseParameter eltwise_param: operation:EltwiseOp coeff:float* stable_prod_grad:bool
ELUParameter elu_param: alpha:float
EmbedParameter embed_param: num_output:uint input_dim:uint bias_term:bool
    weight_filler:FillerParameter bias_filler:FillerParameter
ExpParameter exp_param: base:float scale:float shift:float
FlattenParameter flatten_param: axis:int end_axis:int
HDF5OutputParameter hdf5_output_param: file_name:string
HDF5DataParameter hdf5_data_param: source:string batch_size:uint shuffle:bool
HingeLossParameter hinge_loss_param: norm:HingeNorm
ImageDataParameter image_data_param: source:string batch_size:uint rand_skip:uint shuffle:bool
    new_height:uint new_width:uint is_color:bool scale:float mean_file:string crop_size:uint
    mirror:bool root_folder:string
InfogainLossParameter infogain_loss_param: source:string axis:int
InnerProductParameter inner_product_param: num_output:uint bias_term:bool
    weight_filler:FillerParameter bias_filler:FillerParameter axis:int transpose:bool
InputParameter input_param: shape:BlobShape*
LogParameter log_param: base:float scale:float shift:float
LRNParameter lrn_param: local_size:uint alpha:float beta:float norm_region:NormRegion k:float
    engine:Engine
MemoryDataParameter memory_data_param: batch_size:uint channels:uint height:uint width:uint
MVNParameter mvn_param: normalize_variance:bool across_channels:bool eps:float
ParameterParameter parameter_param: shape:BlobShape
PoolingParameter pooling_param: pool:PoolMethod pad:uint pad_h:uint pad_w:uint kernel_size:uint
    kernel_h:uint kernel_w:uint stride:uint stride_h:uint stride_w:uint engine:Engine
    global_pooling:bool round_mode:RoundMode
PowerParameter power_param: power:float scale:float shift:float
PReLUParameter prelu_param: filler:FillerParameter channel_shared:bool
PythonParameter python_param: module:string layer:string param_str:string share_in_parallel:bool
RecurrentParameter recurrent_param: num_output:uint weight_filler:FillerParameter
    bias_filler:FillerParameter debug_info:bool expose_hidden:bool
ReductionParameter reduction_param: operation:ReductionOp axis:int coeff:float
ReLUParameter relu_param: negative_slope:float engine:Engine
ReshapeParameter reshape_param: shape:BlobShape axis:int num_axes:int
ScaleParameter scale_param: axis:int num_axes:int filler:FillerParameter bias_term:bool
    bias_filler:FillerParameter
SigmoidParameter sigmoid_param: engine:Engine
SliceParameter slice_param: axis:int slice_point:uint* slice_dim:uint
SoftmaxParameter softmax_param: engine:Engine axis:int
SPPParameter spp_param: pyramid_height:uint pool:PoolMethod engine:Engine
SwishParameter swish_param: beta:float
TanHParameter tanh_param: engine:Engine
ThresholdParameter threshold_param: threshold:float
TileParameter tile_param: axis:int tiles:int
WindowDataParameter window_data_param: source:string scale:float mean_file:string batch_size:uint
    crop_size:uint mirror:bool fg_threshold:float bg_threshold:float fg_fraction:float
    context_pad:uint crop_mode:string cache_images:bool root_folder:string
LayerParameter: name:string type:string bottom:string* top:string* phase:Phase loss_weight:float*
    param:ParamSpec* blobs:BlobProto* propagate_down:bool* include:NetStateRule*
    exclude:NetStateRule*
V1LayerParameter: bottom:string* top:string* name:string include:NetStateRule* exclude:NetStateRule*
    type:V1LayerType blobs:BlobProto* param:string* blob_share_mode:DimCheckMode* blobs_lr:float*
    weight_decay:float* loss_weight:float* accuracy_param argmax_param concat_param
    contrastive_loss_param convolution_param data_param dropout_param dummy_data_param eltwise_param
    exp_param hdf5_data_param hinge_loss_param image_data_param infogain_loss_param
    inner_product_param lrn_param memory_data_param pooling_param power_param relu_param
    sigmoid_param softmax_param slice_param tanh_param transform_param loss_param hdf5_output_param
    mvn_param threshold_param window_data_param
SolverParameter: net:string net_param:NetParameter train_net:string test_net:string*
    train_net_param:NetParameter test_net_param:NetParameter* train_state:NetState
    test_state:NetState* test_iter:int* test_interval:int test_compute_loss:bool
    test_initialization:bool base_lr:float display:int average_loss:int max_iter:int iter_size:int
    lr_policy:string gamma:float power:float momentum:float weight_decay:float
    regularization_type:string stepsize:int stepvalue:int* clip_gradients:float snapshot:int
    snapshot_prefix:string snapshot_diff:bool snapshot_format:SnapshotFormat solver_mode:SolverMode
    device_id:int random_seed:int64 type:string delta:float momentum2:float rms_decay:float
    debug_info:bool snapshot_after_train:bool solver_type:SolverType layer_wise_reduce:bool
    weights:string*
"""

_V1_TYPES = """
ACCURACY=Accuracy BNLL=BNLL CONCAT=Concat CONVOLUTION=Convolution DATA=Data DROPOUT=Dropout
EUCLIDEAN_LOSS=EuclideanLoss FLATTEN=Flatten HDF5_DATA=HDF5Data HDF5_OUTPUT=HDF5Output
IM2COL=Im2col IMAGE_DATA=ImageData INFOGAIN_LOSS=InfogainLoss INNER_PRODUCT=InnerProduct LRN=LRN
MULTINOMIAL_LOGISTIC_LOSS=MultinomialLogisticLoss POOLING=Pooling RELU=ReLU SIGMOID=Sigmoid
SOFTMAX=Softmax SOFTMAX_LOSS=SoftmaxWithLoss SPLIT=Split TANH=TanH WINDOW_DATA=WindowData
ELTWISE=Eltwise POWER=Power SIGMOID_CROSS_ENTROPY_LOSS=SigmoidCrossEntropyLoss
HINGE_LOSS=HingeLoss MEMORY_DATA=MemoryData ARGMAX=ArgMax THRESHOLD=Threshold
DUMMY_DATA=DummyData SLICE=Slice MVN=MVN ABSVAL=AbsVal SILENCE=Silence
CONTRASTIVE_LOSS=ContrastiveLoss EXP=Exp DECONVOLUTION=Deconvolution
"""


def _lines(text: str) -> list[tuple[str, list[str]]]:
    joined = text.strip().replace("\n    ", " ")
    return [(name, rest.split()) for name, rest in (r.split(":", 1) for r in joined.splitlines())]


def _messages() -> dict[str, dict[str, tuple[str, bool]]]:
    messages: dict[str, dict[str, tuple[str, bool]]] = {}
    settings: dict[str, tuple[str, bool]] = {}
    for head, items in _lines(_MESSAGES):
        name, *fields_of_layer = head.split()
        settings |= dict.fromkeys(fields_of_layer, (name, False))
        pairs = (item.partition(":") for item in items)
        messages[name] = {
            field: (kind.rstrip("*"), kind.endswith("*")) if kind else settings[field]
            for field, _, kind in pairs
        }
    messages["LayerParameter"] |= settings
    return messages


V1_TYPES: Mapping[str, str] = dict(item.split("=", 1) for item in _V1_TYPES.split())
"""The names of layer types in the older form of a net, and today's names."""

ENUMS: Mapping[str, Sequence[str]] = {
    **{name: ["" if item == "-" else item for item in items] for name, items in _lines(_ENUMS)},
    "V1LayerType": ["", *V1_TYPES],
}
"""The names of each enum, in the order of their numbers."""

MESSAGES: Mapping[str, dict[str, tuple[str, bool]]] = _messages()
"""The fields of each message: their type, and whether they may be repeated."""

_KINDS = {*MESSAGES, *ENUMS, "int", "uint", "int64", "float", "bool", "string"}
assert all(kind in _KINDS for fields in MESSAGES.values() for kind, _ in fields.values())
