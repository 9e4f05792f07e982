"""The fields of Caffe's messages and the names of its enums, as its documentation has them.

One line per message: `field:type`, with a star where the field may be repeated.
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
TransformationParameter: scale:float mirror:bool crop_size:uint mean_file:string mean_value:float*
    force_color:bool force_gray:bool
LossParameter: ignore_label:int normalization:Normalization normalize:bool
AccuracyParameter: top_k:uint axis:int ignore_label:int
ArgMaxParameter: out_max_val:bool top_k:uint axis:int
ConcatParameter: axis:int concat_dim:uint
BatchNormParameter: use_global_stats:bool moving_average_fraction:float eps:float
BiasParameter: axis:int num_axes:int filler:FillerParameter
ClipParameter: min:float max:float
ContrastiveLossParameter: margin:float legacy_version:bool
ConvolutionParameter: num_output:uint bias_term:bool pad:uint* kernel_size:uint* stride:uint*
    dilation:uint* pad_h:uint pad_w:uint kernel_h:uint kernel_w:uint stride_h:uint stride_w:uint
    group:uint weight_filler:FillerParameter bias_filler:FillerParameter engine:Engine axis:int
    force_nd_im2col:bool
CropParameter: axis:int offset:uint*
DataParameter: source:string batch_size:uint rand_skip:uint backend:Backend scale:float
    mean_file:string crop_size:uint mirror:bool force_encoded_color:bool prefetch:uint
DropoutParameter: dropout_ratio:float scale_train:bool
DummyDataParameter: data_filler:FillerParameter* shape:BlobShape* num:uint* channels:uint*
    height:uint* width:uint*
EltwiseParameter: operation:EltwiseOp coeff:float* stable_prod_grad:bool
ELUParameter: alpha:float
EmbedParameter: num_output:uint input_dim:uint bias_term:bool weight_filler:FillerParameter
    bias_filler:FillerParameter
ExpParameter: base:float scale:float shift:float
FlattenParameter: axis:int end_axis:int
HDF5OutputParameter: file_name:string
HDF5DataParameter: source:string batch_size:uint shuffle:bool
HingeLossParameter: norm:HingeNorm
ImageDataParameter: source:string batch_size:uint rand_skip:uint shuffle:bool new_height:uint
    new_width:uint is_color:bool scale:float mean_file:string crop_size:uint mirror:bool
    root_folder:string
InfogainLossParameter: source:string axis:int
InnerProductParameter: num_output:uint bias_term:bool weight_filler:FillerParameter
    bias_filler:FillerParameter axis:int transpose:bool
InputParameter: shape:BlobShape*
LogParameter: base:float scale:float shift:float
LRNParameter: local_size:uint alpha:float beta:float norm_region:NormRegion k:float engine:Engine
MemoryDataParameter: batch_size:uint channels:uint height:uint width:uint
MVNParameter: normalize_variance:bool across_channels:bool eps:float
ParameterParameter: shape:BlobShape
PoolingParameter: pool:PoolMethod pad:uint pad_h:uint pad_w:uint kernel_size:uint kernel_h:uint
    kernel_w:uint stride:uint stride_h:uint stride_w:uint engine:Engine global_pooling:bool
    round_mode:RoundMode
PowerParameter: power:float scale:float shift:float
PReLUParameter: filler:FillerParameter channel_shared:bool
PythonParameter: module:string layer:string param_str:string share_in_parallel:bool
RecurrentParameter: num_output:uint weight_filler:FillerParameter bias_filler:FillerParameter
    debug_info:bool expose_hidden:bool
ReductionParameter: operation:ReductionOp axis:int coeff:float
ReLUParameter: negative_slope:float engine:Engine
ReshapeParameter: shape:BlobShape axis:int num_axes:int
ScaleParameter: axis:int num_axes:int filler:FillerParameter bias_term:bool
    bias_filler:FillerParameter
SigmoidParameter: engine:Engine
SliceParameter: axis:int slice_point:uint* slice_dim:uint
SoftmaxParameter: engine:Engine axis:int
SPPParameter: pyramid_height:uint pool:PoolMethod engine:Engine
SwishParameter: beta:float
TanHParameter: engine:Engine
ThresholdParameter: threshold:float
TileParameter: axis:int tiles:int
WindowDataParameter: source:string scale:float mean_file:string batch_size:uint crop_size:uint
    mirror:bool fg_threshold:float bg_threshold:float fg_fraction:float context_pad:uint
    crop_mode:string cache_images:bool root_folder:string
LayerParameter: name:string type:string bottom:string* top:string* phase:Phase loss_weight:float*
    param:ParamSpec* blobs:BlobProto* propagate_down:bool* include:NetStateRule*
    exclude:NetStateRule* transform_param:TransformationParameter loss_param:LossParameter
    accuracy_param:AccuracyParameter argmax_param:ArgMaxParameter
    batch_norm_param:BatchNormParameter bias_param:BiasParameter clip_param:ClipParameter
    concat_param:ConcatParameter contrastive_loss_param:ContrastiveLossParameter
    convolution_param:ConvolutionParameter crop_param:CropParameter data_param:DataParameter
    dropout_param:DropoutParameter dummy_data_param:DummyDataParameter
    eltwise_param:EltwiseParameter elu_param:ELUParameter embed_param:EmbedParameter
    exp_param:ExpParameter flatten_param:FlattenParameter hdf5_data_param:HDF5DataParameter
    hinge_loss_param:HingeLossParameter image_data_param:ImageDataParameter
    infogain_loss_param:InfogainLossParameter inner_product_param:InnerProductParameter
    input_param:InputParameter log_param:LogParameter lrn_param:LRNParameter
    memory_data_param:MemoryDataParameter pooling_param:PoolingParameter
    power_param:PowerParameter prelu_param:PReLUParameter reduction_param:ReductionParameter
    relu_param:ReLUParameter reshape_param:ReshapeParameter scale_param:ScaleParameter
    sigmoid_param:SigmoidParameter softmax_param:SoftmaxParameter slice_param:SliceParameter
    tanh_param:TanHParameter tile_param:TileParameter
    hdf5_output_param:HDF5OutputParameter mvn_param:MVNParameter
    parameter_param:ParameterParameter python_param:PythonParameter
    recurrent_param:RecurrentParameter spp_param:SPPParameter swish_param:SwishParameter
    threshold_param:ThresholdParameter window_data_param:WindowDataParameter
V1LayerParameter: bottom:string* top:string* name:string include:NetStateRule*
    exclude:NetStateRule* type:V1LayerType blobs:BlobProto* param:string*
    blob_share_mode:DimCheckMode* blobs_lr:float* weight_decay:float* loss_weight:float*
    accuracy_param:AccuracyParameter argmax_param:ArgMaxParameter concat_param:ConcatParameter
    contrastive_loss_param:ContrastiveLossParameter convolution_param:ConvolutionParameter
    data_param:DataParameter dropout_param:DropoutParameter dummy_data_param:DummyDataParameter
    eltwise_param:EltwiseParameter exp_param:ExpParameter hdf5_data_param:HDF5DataParameter
    hinge_loss_param:HingeLossParameter image_data_param:ImageDataParameter
    infogain_loss_param:InfogainLossParameter inner_product_param:InnerProductParameter
    lrn_param:LRNParameter memory_data_param:MemoryDataParameter pooling_param:PoolingParameter
    power_param:PowerParameter relu_param:ReLUParameter sigmoid_param:SigmoidParameter
    softmax_param:SoftmaxParameter slice_param:SliceParameter tanh_param:TanHParameter
    transform_param:TransformationParameter loss_param:LossParameter
    hdf5_output_param:HDF5OutputParameter mvn_param:MVNParameter
    threshold_param:ThresholdParameter window_data_param:WindowDataParameter
SolverParameter: net:string net_param:NetParameter train_net:string test_net:string*
    train_net_param:NetParameter test_net_param:NetParameter* train_state:NetState
    test_state:NetState* test_iter:int* test_interval:int test_compute_loss:bool
    test_initialization:bool base_lr:float display:int average_loss:int max_iter:int iter_size:int
    lr_policy:string gamma:float power:float momentum:float weight_decay:float
    regularization_type:string stepsize:int stepvalue:int* clip_gradients:float snapshot:int
    snapshot_prefix:string snapshot_diff:bool snapshot_format:SnapshotFormat
    solver_mode:SolverMode device_id:int random_seed:int64 type:string delta:float
    momentum2:float rms_decay:float debug_info:bool snapshot_after_train:bool
    solver_type:SolverType layer_wise_reduce:bool weights:string*
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


V1_TYPES: Mapping[str, str] = dict(item.split("=", 1) for item in _V1_TYPES.split())
"""The names of layer types in the older form of a net, and today's names."""

ENUMS: Mapping[str, Sequence[str]] = {
    **{name: ["" if item == "-" else item for item in items] for name, items in _lines(_ENUMS)},
    "V1LayerType": ["", *V1_TYPES],
}
"""The names of each enum, in the order of their numbers."""

MESSAGES: Mapping[str, dict[str, tuple[str, bool]]] = {
    name: {
        field: (kind.rstrip("*"), kind.endswith("*"))
        for field, kind in (item.split(":", 1) for item in items)
    }
    for name, items in _lines(_MESSAGES)
}
"""The fields of each message: their type, and whether they may be repeated."""

for _fields in MESSAGES.values():
    for _kind, _ in _fields.values():
        assert (
            _kind in MESSAGES
            or _kind in ENUMS
            or _kind in ("int", "uint", "int64", "float", "bool", "string")
        ), _kind
