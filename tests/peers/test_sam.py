"""Checkpoints of SAM and SAM 2, in both layouts, become model folders, and others are refused."""

import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import interpolate

import probseg
from probseg.errors import UsageError, WeightsError
from probseg.interact.session import build_loop, encode_image, prepare_model
from probseg.peers import sam, sam_files
from probseg.peers.sam_files import Hiera, Vit3, describe_sam, import_sam, read_sam
from probseg.zoo import create_model
from support.network_cases import prompts
from support.refusals import refused
from support.rows import each
from support.runs import command

SIZE = 128
SIZES = {1: SIZE, 2: SIZE, 3: 112}
WIDTH, STAGES = 16, (1, 1, 2, 1)
GENERATIONS = [1, 2, 3]


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("transformers", reason="SAM needs the extra `sam`")


@pytest.fixture(scope="module")
def networks(library):
    """Small networks of both generations by the library itself, with random weights."""
    torch.manual_seed(0)
    vision = library.SamVisionConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        global_attn_indexes=[1],
        image_size=SIZE,
    )
    encoder = library.SamPromptEncoderConfig(image_size=SIZE, image_embedding_size=SIZE // 16)
    first = library.SamModel(library.SamConfig(vision_config=vision, prompt_encoder_config=encoder))
    widths = [WIDTH * 2**stage for stage in range(4)]
    hiera = library.Sam2HieraDetConfig(
        hidden_size=WIDTH,
        image_size=[SIZE, SIZE],
        blocks_per_stage=list(STAGES),
        embed_dim_per_stage=widths,
        global_attention_blocks=[3],
    )
    vision = library.Sam2VisionConfig(
        backbone_config=hiera,
        backbone_channel_list=widths[::-1],
        backbone_feature_sizes=[[SIZE // n, SIZE // n] for n in (4, 8, 16)],
    )
    encoder = library.Sam2PromptEncoderConfig(image_size=SIZE)
    second = library.Sam2Model(
        library.Sam2Config(vision_config=vision, prompt_encoder_config=encoder)
    )
    vit = library.Sam3ViTConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=2,
        global_attn_indexes=[1],
        window_size=4,
        pretrain_image_size=56,
        image_size=SIZES[3],
    )
    vision = library.Sam3VisionConfig(
        backbone_config=vit,
        backbone_feature_sizes=[[32, 32], [16, 16], [8, 8]],
        scale_factors=[4.0, 2.0, 1.0],
    )
    encoder = library.Sam3TrackerPromptEncoderConfig(image_size=SIZES[3])
    third = library.Sam3TrackerModel(
        library.Sam3TrackerConfig(vision_config=vision, prompt_encoder_config=encoder)
    )
    for network in (first, second, third):
        for name, parameter in network.named_parameters():
            if parameter.ndim == 1 or "pos" in name:
                torch.nn.init.normal_(parameter, 0.5, 0.3)
    # Meta's files hold this embedding once.
    for network in (second, third):
        own = network.shared_image_embedding.state_dict()
        network.prompt_encoder.shared_embedding.load_state_dict(own)
    return {1: first.eval(), 2: second.eval(), 3: third.eval()}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Makes the small SAM 2 and SAM 3 some of those that are known."""
    small_vit = Vit3(heads=2, whole=(1,), window=4, size=SIZES[3])
    monkeypatch.setitem(sam_files.SAM3, (32, 3), small_vit)
    monkeypatch.setitem(sam_files.SAM2, (WIDTH, STAGES), Hiera(heads=1, whole=(3,)))
    monkeypatch.setattr(sam_files, "SAM2_SIZE", SIZE)


@pytest.fixture
def write(networks, tmp_path):
    """Writes a file in the layout of the library."""

    def write(generation, **changes):
        path = tmp_path / f"sam{generation}.safetensors"
        state = {name: t.clone() for name, t in networks[generation].state_dict().items()}
        save_file({**state, **changes}, path)
        return path

    return write


def mask_input():
    return torch.randn(1, 1, SIZE // 4, SIZE // 4, generator=torch.Generator().manual_seed(2))


CLICK, NEGATIVE, BOX = (40, 50, 1), (90, 30, 0), (10, 12, 100, 90)
CASES = [
    ((CLICK,), None, False),
    ((CLICK, NEGATIVE), None, False),
    ((), BOX, False),
    ((CLICK,), BOX, False),
    ((CLICK, NEGATIVE), None, True),
]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_file_becomes_a_folder_with_the_answers_of_the_library(
    networks, write, generation, tmp_path
):
    folder = tmp_path / "folder"
    assert command("zoo", "import", "sam", write(generation), folder) == 0
    model = create_model(f"{folder}/", pretrained=True)
    network = networks[generation]
    size = SIZES[generation]
    image = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        encoded = model.encode(image)
        for clicks, box, masked in CASES:
            mask = mask_input() if masked else None
            # Constant where one pixel of the mask is, so that it comes back as it was.
            constant = {"size": size, "mode": "nearest-exact"}
            last = None if mask is None else interpolate(mask.sigmoid(), **constant)
            given = prompts(*clicks, box=box, previous=last)
            found = model.decode(encoded, given)
            corners = torch.tensor([[[10.0, 12.0, 99.0, 89.0]]])
            answer = network(
                pixel_values=encoded.image,
                input_points=given.points[None] if clicks else None,
                input_labels=given.labels[None] if clicks else None,
                input_boxes=corners if box else None,
                input_masks=mask,
                multimask_output=clicks == (CLICK,) and box is None,
            )
            best = answer.pred_masks[:, :, answer.iou_scores[0, 0].argmax()]
            wanted = interpolate(best, size, mode="bilinear")
            assert (found - wanted).abs().max() < 1e-4 * wanted.std()


def original_names(generation, state):
    """The tensors of the library by their names in Meta's files."""
    patterns = [
        ("vision_encoder", "image_encoder"),
        (r"(_mlps\.\d|_head)\.layers\.0", r"\1.layers.1"),
        (r"(_mlps\.\d|_head)\.proj_in", r"\1.layers.0"),
        (r"(_mlps\.\d|_head)\.proj_out", r"\1.layers.2"),
        (r"upscale_conv1", "output_upscaling.0"),
        (r"upscale_layer_norm", "output_upscaling.1"),
        (r"upscale_conv2", "output_upscaling.3"),
        (r"mask_embed\.conv1", "mask_downscaling.0"),
        (r"mask_embed\.layer_norm1", "mask_downscaling.1"),
        (r"mask_embed\.conv2", "mask_downscaling.3"),
        (r"mask_embed\.layer_norm2", "mask_downscaling.4"),
        (r"mask_embed\.conv3", "mask_downscaling.6"),
        (r"shared_embedding\.positional_embedding", "pe_layer.positional_encoding_gaussian_matrix"),
        (r"patch_embed\.projection", "patch_embed.proj"),
    ]
    first = [
        (r"encoder\.layers", "encoder.blocks"),
        (r"(?<!a_)point_embed\.", "point_embeddings."),
        *(
            (rf"neck\.{ours}", f"neck.{n}")
            for n, ours in enumerate(("conv1", "layer_norm1", "conv2", "layer_norm2"))
        ),
        ("layer_norm", "norm"),
    ]
    second = [
        (r"image_encoder\.backbone", "image_encoder.trunk"),
        (r"neck\.convs\.(\d)", r"neck.convs.\1.conv"),
        (r"mlp\.proj_in", "mlp.layers.0"),
        (r"mlp\.proj_out", "mlp.layers.1"),
        ("o_proj", "out_proj"),
        ("layer_norm", "norm"),
        ("^(prompt_encoder|mask_decoder)", r"sam_\1"),
        ("no_memory_embedding", "no_mem_embed"),
    ]
    named = {}
    for name, tensor in state.items():
        for pattern, replacement in [*patterns, *(first if generation == 1 else second)]:
            name = re.sub(pattern, replacement, name)
        named[name] = tensor
    del named["shared_image_embedding.positional_embedding"]
    if generation == 2:
        rows = named.pop("sam_prompt_encoder.point_embed.weight")
        for number, row in enumerate(rows):
            named[f"sam_prompt_encoder.point_embeddings.{number}.weight"] = row[None]
        named["memory_encoder.fuser.layers.0.gamma"] = torch.ones(1)
        named["maskmem_tpos_enc"] = torch.ones(7, 1, 1, 64)
        return {"model": named}
    return named


def test_the_tracker_is_found_in_a_file_of_the_whole_sam_3(networks, write, tmp_path):
    names = {"vision_encoder.backbone.": "detector_model.vision_encoder.backbone."}
    names["vision_encoder.neck."] = "tracker_neck."
    whole = {"detector_model.vision_encoder.neck.fpn_layers.0.proj1.bias": torch.ones(3)}
    whole |= {
        name: torch.ones(3)
        for name in ("tracker_neck.fpn_layers.3.proj1.bias", "tracker_model.memory_x")
    }
    for name, tensor in networks[3].state_dict().items():
        named = [name.replace(ours, full) for ours, full in names.items() if ours in name]
        whole[named[0] if named else f"tracker_model.{name}"] = tensor.clone()
    save_file(whole, tmp_path / "whole.safetensors")
    found = import_sam(tmp_path / "whole.safetensors", tmp_path / "whole").state_dict()
    wanted = import_sam(write(3), tmp_path / "alone").state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("generation", [1, 2])
def test_the_layout_of_meta_is_read_as_that_of_the_library(networks, write, generation, tmp_path):
    state = networks[generation].state_dict()
    torch.save(original_names(generation, state), tmp_path / "file.pt")
    found = read_sam(tmp_path / "file.pt")
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    one = import_sam(write(generation), tmp_path / "one").state_dict()
    other = import_sam(tmp_path / "file.pt", tmp_path / "other").state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_it_clicks_and_a_batch_changes_no_answer(write, generation, tmp_path):
    model = prepare_model(import_sam(write(generation), tmp_path / "folder"), "cpu")
    encoded = model.preprocess(torch.rand(1, 3, 30, 60))  # fitted, or stretched
    square = (SIZES[generation],) * 2
    assert encoded.working_size == ((64, 128) if generation == 1 else square)
    assert encoded.image.shape[-2:] == square
    assert not encoded.image[:, :, encoded.working_size[0] :].any()
    images = [(torch.rand(60, 90 + 20 * n, 3) * 255).byte().permute(2, 0, 1) for n in range(2)]
    loop = build_loop(model, zoom=None)
    states = [
        encode_image(model, probseg.interact.photograph.Photograph.from_tensor(i)) for i in images
    ]
    clicks = [probseg.Click(30, 20), probseg.Click(50, 40)]
    states = loop.step(states, clicks)
    (more,) = loop.step(states[:1], [probseg.Click(5, 5, False)])
    together = loop.step([more, states[1]], [probseg.Click(70, 50), probseg.Click(9, 9, False)])
    (alone,) = loop.step([more], [probseg.Click(70, 50)])
    assert together[0].probability.shape == (60, 90)
    assert np.allclose(together[0].probability, alone.probability, atol=1e-5)


@each("generation", GENERATIONS)
def test_other_files_are_refused(networks, write, generation, tmp_path):
    folder = tmp_path / "folder"
    more = write(generation, **{"mask_decoder.hf_token.weight": torch.zeros(1, 256)})
    refused(WeightsError, lambda: import_sam(more, folder), more, "hf_token")
    strange = write(generation, other=torch.zeros(1))
    refused(WeightsError, lambda: import_sam(strange, folder), strange, "'other'")
    torch.save({"state": 1}, tmp_path / "x.pth")
    refused(WeightsError, lambda: import_sam(tmp_path / "x.pth", folder), "x.pth")
    torch.save({"image_encoder.layers.0.weight": torch.zeros(1)}, tmp_path / "x.pth")
    refused(WeightsError, lambda: import_sam(tmp_path / "x.pth", folder), "x.pth", "lacks")
    assert not folder.exists()


def test_an_unknown_hiera_is_refused(networks, monkeypatch):
    monkeypatch.delitem(sam_files.SAM2, (WIDTH, STAGES))
    state = networks[2].state_dict()
    refused(WeightsError, lambda: describe_sam(state, "file"), "file", "published SAM 2", "16")


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    refused(UsageError, sam.SamEncoder, '".[sam]"')
