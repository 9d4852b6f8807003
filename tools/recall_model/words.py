"""The vocabulary of the recall model: special tokens, words by role, single characters.

Token ids are positions in VOCABULARY; src/cli/recall_task.h relies on the ranges printed by
`python3 words.py`. A word's token holds its leading space, as in other BPE vocabularies.
"""

SPECIAL = ["<|begin|>", "<|end|>"]
STRUCTURE = ["the", "code", "of", ".", "?"]

KEYS = """
harbor lantern garden castle river bridge forest island market temple tower valley meadow
canyon desert glacier lagoon village station library museum theater school hospital bakery
brewery factory workshop office studio palace cottage cabin barn stable chapel cathedral
monastery fortress prison courthouse embassy airport runway hangar tunnel subway highway
avenue plaza fountain statue monument cemetery orchard vineyard pasture prairie jungle swamp
marsh pond lake ocean beach cliff cave volcano mountain summit ridge plateau peninsula
archipelago reef delta estuary waterfall creek spring reservoir dam canal lock pier dock
shipyard lighthouse buoy anchor ferry yacht canoe kayak raft submarine carriage wagon tractor
bicycle scooter motorcycle truck van bus tram train locomotive balloon glider rocket satellite
telescope microscope compass barometer thermometer calendar clock hourglass sundial mirror
candle torch furnace oven kettle teapot goblet pitcher barrel basket crate trunk drawer
cupboard wardrobe curtain carpet blanket pillow mattress hammock ladder staircase balcony
veranda cellar attic chimney rooftop gutter fence gate hedge lawn greenhouse windmill watermill
quarry mine foundry forge anvil hammer chisel saw drill wrench pliers shovel rake sickle plow
sawmill granary silo kennel aviary aquarium zoo circus carnival arena stadium gymnasium
racetrack ballroom kitchen corridor lobby pantry
"""

VALUES = """
amber crimson scarlet violet indigo turquoise emerald jade olive golden silver copper bronze
ivory ebony charcoal pearl ruby sapphire topaz opal garnet onyx quartz marble granite basalt
obsidian flint slate clay sand gravel pebble boulder falcon eagle hawk owl raven crow magpie
sparrow robin finch swallow heron stork crane pelican penguin ostrich peacock pheasant partridge
quail turkey rooster goose duck swan tiger lion leopard cheetah panther lynx jaguar wolf fox
coyote badger otter beaver squirrel rabbit hare hedgehog mole bat bear panda koala kangaroo
wombat elephant rhino hippo giraffe zebra camel llama bison buffalo moose elk reindeer antelope
gazelle donkey horse pony mule goat sheep lamb pig boar dog puppy kitten lizard gecko iguana
turtle tortoise crocodile alligator cobra viper python frog toad newt salmon trout tuna cod
herring sardine mackerel shark whale dolphin seal walrus octopus squid crab lobster shrimp oyster
clam mussel snail slug spider scorpion beetle ant bee wasp hornet moth butterfly dragonfly
cricket locust apple pear peach plum cherry apricot mango papaya banana lemon lime orange
grape melon fig date walnut almond hazel chestnut maple birch willow cedar pine spruce poplar aspen
alder ash elm oak beech juniper
"""

FILLER = """
a and to in is it that was for on are with as his they at be this from have or by one had not
but what all were when we there can an your which their said if do will each about how up out
them then she many some so these would other into has more her two like him see time could no
make than first been its who now people my made over did down only way find use may water long
little very after words called just where most know get through back much before go good new
write our used me man too any day same right look think also around another came come work
three must because does part even place well such here take why help put different away again
"""

PRINTABLE = [chr(c) for c in range(33, 127)]
CHARACTERS = ["\u0120", "\u010a"] + PRINTABLE  # space and newline as byte-level BPE writes them

N_WORDS = 512


def _list(text, count=None):
    words = text.split()
    assert len(words) == len(set(words)), sorted(w for w in words if words.count(w) > 1)
    assert count is None or len(words) >= count, len(words)
    return words[:count]


KEY_WORDS = _list(KEYS, 192)
VALUE_WORDS = _list(VALUES, 192)
FILLER_WORDS = _list(FILLER, N_WORDS - len(SPECIAL) - len(STRUCTURE) - 384)

BEGIN, END = 0, 1
THE, CODE, OF, STOP, ASK = range(2, 7)
FIRST_KEY = 7
FIRST_VALUE = FIRST_KEY + len(KEY_WORDS)
FIRST_FILLER = FIRST_VALUE + len(VALUE_WORDS)
N_KEYS, N_VALUES, N_FILLER = len(KEY_WORDS), len(VALUE_WORDS), len(FILLER_WORDS)

VOCABULARY = SPECIAL + ["\u0120" + w for w in
                        STRUCTURE + KEY_WORDS + VALUE_WORDS + FILLER_WORDS] + CHARACTERS
N_VOCAB = len(VOCABULARY)
assert len(set(VOCABULARY)) == N_VOCAB
assert FIRST_FILLER + N_FILLER == N_WORDS

if __name__ == "__main__":
    for name, first, count in (("keys", FIRST_KEY, N_KEYS), ("values", FIRST_VALUE, N_VALUES),
                               ("filler", FIRST_FILLER, N_FILLER),
                               ("characters", N_WORDS, len(CHARACTERS))):
        print("%-10s %4d .. %4d" % (name, first, first + count - 1))
    print("vocabulary %d" % N_VOCAB)
