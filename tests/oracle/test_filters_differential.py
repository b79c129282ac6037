"""Every filter gives what the published packages give, over small inputs; deviations are listed with reasons."""

# ruff: noqa: E501  the expressions are data

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.oracle

PRELUDE = r"""
import io, itertools, random, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
import webdataset as wds
import webdataset.filters as F
import webdataset.mix
def show(x):
    if isinstance(x, np.ndarray): return f"array({x.dtype},{x.tolist()})"
    if isinstance(x, dict): return "{" + ", ".join(f"{k!r}: {show(v)}" for k, v in sorted(x.items(), key=repr)) + "}"
    if isinstance(x, list): return "[" + ", ".join(map(show, x)) + "]"
    if isinstance(x, tuple): return "(" + ", ".join(map(show, x)) + ",)"
    return repr(x)
def S(*names): return [{"__key__": str(i), **{n: (n, i) for n in names}} for i in range(3)]
def run(stage, source): return list(stage(iter(source)))
def bad(x): raise ValueError("no")
def h(verdict): return lambda error: verdict
def outcome(expression, **names):
    try:
        return ["value", show(eval(expression, {**globals(), **names}))]
    except Exception as error:
        return ["error", [kind.__name__ for kind in type(error).__mro__]]
"""

MAIN = """
import json
def drawn(seed): return random.seed(seed) or {}
path = sys.argv[1]
for expression in json.load(sys.stdin):
    open(path, "w").close()
    print(json.dumps(outcome(expression)))
"""

CASES = r"""
run(F.compose(F.map(lambda x:x+1), F.map(lambda x:x*2)), range(3))
F.compose(lambda x:x+1, lambda x: x*2)(3)
F.compose()(3)
F.compose(lambda x:x+1)(3)
F.compose2(lambda x:x+1, lambda x:x*2)(3)
list(F.pipeline(iter(range(3)), F.map(lambda x:x+1)))
list(F.pipeline([1,2]))
F.transform_with({'a':1,'b':2}, {'a':str})
F.transform_with((1,2,3), [str,None])
F.transform_with((1,2,3), (str,))
F.transform_with([1,2,3], None)
F.transform_with([1,2,3], [])
F.transform_with((1,), [str,str])
run(F.map_tuple(str,None), [(1,2),(3,4)])
run(F.map_tuple(str,None,str,str), [(1,2),[3,4]])
run(F.map_tuple(str), [(1,2),(3,4)])
run(F.map_tuple(bad,handler=h(True)), [(1,2),(3,4)])
run(F.map_tuple(), [(1,2),(3,4)])
run(F.map_dict(a=str), [{'a':1,'b':2},{'a':3}])
run(F.map_dict(z=str), [{'a':1,'b':2},{'a':3}])
run(F.map_dict(z=str,handler=h(True)), [{'a':1,'z':2},{'a':3}])
run(F.map_dict(z=str,handler=h(False)), [{'a':3},{'a':1,'z':2}])
run(F.map_dict(a=str), [(1,2)])
run(F.map(lambda x: None if x==1 else x), range(3))
run(F.map(lambda x: {'a':1}), [{'__key__':'k'},{'z':1}])
run(F.map(lambda x: {'a':1,'__key__':'mine'}), [{'__key__':'k'},{'z':1}])
run(F.map(lambda x: 1//x, handler=h(True)), [1,0,2])
run(F.map(lambda x: 1//x, handler=h(False)), [1,0,2])
run(F.map(lambda x: 1//x, handler=h(None)), [1,0,2])
run(F.map(lambda x: 1//x), [1,0,2])
run(F.select(lambda x: x%2), range(5))
run(F.select(lambda x: x/0), range(5))
run(F.slice(2), range(5))
run(F.slice(1,None,2), range(5))
run(F.rename(b='a'), S('a'))
run(F.rename(b='a;c', keep=False), S('a'))
run(F.rename(b='c;a'), [{'__key__':'1','a':1,'c':2,'d':3}])
run(F.rename(b='a', c='a', keep=False), S('a','x'))
run(F.rename(b='a', c='a'), S('a','x'))
run(F.rename(b='zz'), S('a'))
run(F.rename(b='zz',handler=h(True)), S('a'))
run(F.rename(a='b',b='a'), S('a','b'))
run(F.rename(key='__key__'), S('a'))
run(F.rename(key='__key__',keep=False), S('a'))
run(F.rename(b=['a','c']), S('a'))
run(F.rename(a='a;b'), S('a','b'))
run(F.rename(b='a b'), S('a'))
run(F.rename_keys(('x','a*')), S('aa','b'))
run(F.rename_keys(('x','a*'),keep_unselected=True), S('aa','b'))
run(F.rename_keys(x='a*',y='aa'), S('aa','b'))
run(F.rename_keys(('x','a*'),x='b'), S('aa','b'))
run(F.rename_keys(('x','a*'),x='b',duplicate_is_error=False), S('aa','b'))
run(F.rename_keys(x='z*'), S('aa','b'))
run(F.rename_keys(x='z*', must_match=False), S('aa','b'))
run(F.rename_keys(x='*.JPG'), [{'__key__':'1','dir/A.JPG':1}])
run(F.rename_keys(x='*.jpg'), [{'__key__':'1','dir/A.JPG':1}])
run(F.rename_keys(x='dir/*'), [{'__key__':'1','dir/A.JPG':1}])
run(F.rename_keys(x='__key__'), S('a'))
run(F.rename_keys(x='*'), S('a','b'))
run(F.rename_keys(x='*',keep_unselected=True), S('a'))
run(F.rename_keys(b='a',keep_unselected=True), S('a','b'))
run(F.extract_keys('a','b'), S('a','b'))
run(F.extract_keys('*.a','*.b'), S('a','b'))
run(F.extract_keys('.a','.b'), S('a','b'))
run(F.extract_keys('*.a;*.b'), S('a','b'))
run(F.extract_keys('a;b'), S('a','b'))
run(F.extract_keys(['*.a','*.b'],'*.b'), S('a','b'))
run(F.extract_keys('*.z'), S('a','b'))
run(F.extract_keys('*.z','*.a',ignore_missing=True), S('a','b'))
run(F.extract_keys('*.?'), S('a','b'))
run(F.extract_keys('*.?',duplicate_is_error=False), S('a','b'))
run(F.extract_keys(), S('a','b'))
run(F.extract_keys('*__key__'), S('a','b'))
run(F.extract_keys('*.A'), [{'__key__':'1','A':2}])
run(F.extract_keys('*.a'), [{'__key__':'1','A':2}])
run(F.extract_keys('*.a'), [{'__key__':'1','x.a':2}])
run(F.associate({'0':{'n':1}}), S('a'))
run(F.associate(lambda k:{'n':k}), S('a'))
run(F.associate({'0':{'n':1},'1':{'n':2},'2':{'a':2}}), S('a'))
run(F.associate(lambda k:None), S('a'))
run(F.to_tuple('a','b'), S('a','b'))
run(F.to_tuple('a b'), S('a','b'))
run(F.to_tuple('a;c','b'), S('a','b'))
run(F.to_tuple('c;a b'), S('a','b'))
run(F.to_tuple(['c','a'],'b'), S('a','b'))
run(F.to_tuple(('c','a'),'b'), S('a','b'))
run(F.to_tuple('z'), S('a','b'))
run(F.to_tuple('z',missing_is_error=False), S('a','b'))
run(F.to_tuple('z',handler=h(True)), S('a','b'))
run(F.to_tuple('z',handler=h(False)), S('a','b'))
run(F.to_tuple('__key__'), S('a','b'))
run(F.to_tuple('a','z b'), S('a','b'))
run(F.to_tuple(), S('a','b'))
run(F.to_tuple('a'), [{'a':None}])
run(F.to_tuple('a',none_is_error=False), [{'a':None}])
run(F.to_tuple('a',missing_is_error=False), [{'a':None}])
run(F.to_tuple('a;b'), [{'a':None,'b':1}])
run(F.to_tuple('a;b',none_is_error=True), [{'a':None,'b':1}])
run(F.to_tuple('z',missing_is_error=False,none_is_error=True), [{'a':None,'b':1}])
F.getfirst({'a':1},'b;a')
F.getfirst({'a':1},['b','a'])
F.getfirst({'a':1},'b',missing_is_error=False)
F.getfirst({'a':1},'b',5,False)
F.getfirst({'a':1},'b',5)
F.getfirst({'a':1},'b a')
F.getfirst({'a':1},('a',))
run(F.batched(2), [(i,str(i)) for i in range(5)])
run(F.batched(2,partial=False), [(i,str(i)) for i in range(5)])
run(F.batched(2,collation_fn=None), range(5))
run(F.batched(2,collation_fn=sum), range(5))
run(F.batched(2,None,False), range(5))
run(F.batched(2), range(5))
run(F.batched(2), ['a','b','c'])
run(F.batched(0,None), range(3))
run(F.batched(1,None), range(3))
run(F.batched(3,None), [])
run(F.batched(2), S('a'))
run(F.batched(2), [{'a':1,'b':2.5},{'a':2,'b':3}])
run(F.batched(2), [{'a':1},{'b':2}])
run(F.batched(2), [[1,'x'],[2,'y']])
run(F.batched(2), [(1,2),(3,)])
run(F.batched(2), [((1,2),3),((4,5),6)])
run(F.batched(2), [({'a':1},3),({'a':2},6)])
run(F.batched(2), [(True,1.5,None),(False,2.5,None)])
run(F.batched(2), [(1,),(2.5,)])
run(F.batched(2), [(True,),(2,)])
run(F.batched(2), [(1,),('a',)])
run(F.batched(2), [(np.zeros(2),),(np.ones(2),)])
run(F.batched(2), [(np.zeros(2),),(np.ones(3),)])
run(F.batched(2), [(np.float32(2),),(np.float32(3),)])
run(F.batched(2), [(b'a',),(b'b',)])
run(F.batched(2), [np.zeros(2),np.ones(2)])
F.default_collation_fn([(1,np.zeros(2)),(2,np.ones(2))],combine_scalars=False)
F.default_collation_fn([(1,np.zeros(2)),(2,np.ones(2))],combine_tensors=False)
F.default_collation_fn([])
F.default_collation_fn([(1+2j,),(2j,)])
run(F.unbatched(), [((1,2),('a','b')),((3,),('c',))])
run(F.unbatched(), [[[1,2],['a','b']]])
run(F.unbatched(), [{'a':[1,2],'b':'xy'}])
run(F.unbatched(), [{'a':[1,2],'b':'x'}])
run(F.unbatched(), [((1,2),('a',))])
run(F.unbatched(), [((),())])
run(F.unbatched(), [()])
run(F.unbatched(), [{}])
run(F.unbatched(), ["abc"])
run(F.unbatched(), [(np.arange(4).reshape(2,2),[1,2])])
run(F.unlisted(), [[1,2],[3]])
run(F.unlisted(), [(1,2),[3]])
run(F.unlisted(), ["ab"])
run(F.unlisted(), [{'a':1}])
run(F.rsample(1.0), range(4))
run(F.rsample(0.0), range(4))
run(F.shuffle(4,2,random.Random(0)), range(12))
run(F.shuffle(1,1,random.Random(0)), range(12))
run(F.shuffle(0,0,random.Random(0)), range(12))
run(F.shuffle(0,rng=random.Random(0)), range(12))
run(F.shuffle(2,-5,random.Random(0)), range(5))
run(F.shuffle(-2,5,random.Random(0)), range(5))
run(F.shuffle(10,initial=3,rng=random.Random(0)), range(5))
run(F.shuffle(3,initial=30,rng=random.Random(0)), range(5))
run(F.shuffle(3,initial=30,rng=random.Random(0),handler=print), range(5))
run(F.shuffle(5,seed=3), range(12))
run(F.shuffle(5,seed=3,rng=random.Random(0)), range(12))
run(F.shuffle(5,seed=0), range(12))
list(F._shuffle(iter(range(10)),4,2,random.Random(0)))
list(F.detshuffle(4,2,7).run(iter(range(12))))
(lambda d:[list(d.run(iter(range(12)))) for _ in range(2)])(F.detshuffle(4,2,7))
(lambda d:[list(d.run(iter(range(12)))) for _ in range(2)])(F.detshuffle(4,2,7,epoch=5))
list(F.detshuffle(4,2,7)(iter(range(12))))
(lambda d:[list(d.run(iter(range(4)))) for _ in range(2)])(F.Cached())
(lambda d:[list(d(iter(range(4)))) for _ in range(2)])(F.Cached())
run(F.xdecode(('*.a',lambda s:('A',s.read()))), [{'__key__':'k','x.a':b'1','y.b':b'2'}])
run(F.xdecode(a=lambda s:('A',s.read())), [{'__key__':'k','a':b'1','b.txt':b'2','c':b'3'}])
run(F.xdecode(a=lambda s:('A',s.read()),must_decode=False), [{'__key__':'k','a':b'1','b.txt':b'2','c.bin':b'3','q':b'7'}])
run(F.xdecode(a=lambda s:('A',s.read())), [{'__key__':'k','x.a':b'1','b.txt':b'2','c.bin':b'3'}])
run(F.xdecode(('*.txt',lambda s:'over')), [{'__key__':'k','b.txt':b'2'}])
run(F.xdecode(), [{'__key__':'k','b.txt':b'2','txt':b'3','B.TXT':b'4'}])
run(F.xdecode(('*.txt',False)), [{'__key__':'k','b.txt':b'2'}])
run(F.xdecode(('*.txt',None)), [{'__key__':'k','b.txt':b'2'}])
run(F.xdecode(('*.a',lambda s:1),('*.a',lambda s:2)), [{'__key__':'k','x.a':b'2'}])
run(F.xdecode(('*.a',bad)), [{'__key__':'k','x.a':b'2'}])
run(F.xdecode(('*.a',lambda s:s.read())), [{'__key__':'k','x.a':'str'}])
run(F.xdecode(), [{'__key__':'k','b.txt':'str'}])
list(wds.RoundRobin([[1,1,1],[2],[3,3]]))
list(wds.RoundRobin([[1,1,1],[2],[3,3]],longest=True))
list(wds.RoundRobin([]))
list(wds.RoundRobin([],longest=True))
list(wds.RandomMix([]))
list(wds.RandomMix([[1,2,3]]))
list(wds.MockDataset(5,3))
(lambda s: (list(F.info(n=2,stream=s)(iter(S('a')))),s.getvalue()))(io.StringIO())
(lambda s: (list(F.info(fmt='X',n=1,every=2,stream=s,name='nm')(iter(S('a')))),s.getvalue()))(io.StringIO())
(lambda s: (list(F.info(n=1,stream=s)(iter([(1,'a'*100,np.zeros((2,3)))]))),s.getvalue()))(io.StringIO())
(lambda s: (list(F.info(n=1,stream=s,width=10)(iter([{'__key__':'k','a':'a'*100,'b':np.zeros((2,3))}]))),s.getvalue()))(io.StringIO())
(lambda s: (list(F.info(fmt='{__key__}',n=1,every=2,stream=s,name='nm')(iter(S('a')))),s.getvalue()))(io.StringIO())
(lambda s: (list(F.info(fmt='a',n=1,every=2,stream=s,name='nm')(iter(S('a')))),s.getvalue()))(io.StringIO())
F.find_decoder([('*.a',1),('*.b',2)],'x/Y.A')
F.find_decoder([('*.a',1),('*.b',2)],'x/Y.c')
F.parse_field_spec(['a b','c'])
F.parse_field_spec(['a b'])
F.parse_field_spec(['a;b'])
F.identity(3)
F.pick([1,2,3],random.Random(0))
run(F.decode(), [{'__key__':'k','txt':b'abc','cls':b'3','json':b'[1]','bin':b'x'}])
run(F.decode(only=['txt']), [{'__key__':'k','txt':b'abc','cls':b'3'}])
run(F.decode(partial=True), [{'__key__':'k','txt':'abc','cls':b'3'}])
run(F.decode(), [{'__key__':'k','cls':b'x'}])
run(F.decode(handler=h(True)), [{'__key__':'k','cls':b'x'},{'__key__':'k','cls':b'1'}])
run(F.decode(5), [{'__key__':'k','cls':b'1'}])
run(F.decode(lambda k,v: 7 if k=='.x' else None), [{'__key__':'k','x':b'1','cls':b'1'}])
F.find_decoder([('*.a',1)],'a')
F.find_decoder([('a',1)],'a')
F.find_decoder([('.a',1)],'a')
F.find_decoder([('x.a',1)],'x.a')
F.find_decoder([('.x.a',1)],'x.a')
F.find_decoder([('*.a',1),('*.a',2)],'x.a')
run(F.xdecode(('x.a',lambda s:5)), [{'__key__':'k','x.a':b'1'}])
run(F.xdecode(('a',lambda s:5)), [{'__key__':'k','a':b'1'}])
run(F.xdecode(('.a',lambda s:5)), [{'__key__':'k','a':b'1'}])
run(F.xdecode(('A',lambda s:5)), [{'__key__':'k','A':b'1'}])
run(F.xdecode(a=False), [{'__key__':'k','A':b'1'}])
run(F.xdecode(), [{'__key__':'k','__url__':'u','a.txt':b'1'}])
run(F.xdecode(x_a=lambda s:5), [{'__key__':'k','x.a':b'1'}])
run(F.xdecode(defaults=[('*.a',lambda s:6)]), [{'__key__':'k','x.a':b'1'}])
run(F.xdecode(('*.a',lambda s:6)), [{'__key__':'k','q/x.a':b'1'}])
list(F.shuffle(5,seed=3)(iter(range(12))))==list(F.shuffle(5,rng=random.Random(3))(iter(range(12))))
list(F.detshuffle(4,2,7).run(iter(range(12))))==list(F.shuffle(4,2,rng=random.Random(7))(iter(range(12))))
(lambda d:[list(d.run(iter(range(12)))) for _ in range(2)][1]==list(F.shuffle(4,2,rng=random.Random(8))(iter(range(12)))))(F.detshuffle(4,2,7))
F.combine_values([1,2])
F.combine_values([(1,),(2,)])
(lambda s: (list(F.info(n=1,stream=s,name='nm')(iter([{'a':1}]))),s.getvalue()))(io.StringIO())
(lambda s: (list(F.info(fmt='{}',n=1,stream=s,name='nm')(iter([(1,2)]))),s.getvalue()))(io.StringIO())
run(F.associate([1]), S('a'))
run(F.associate({'0':{'n':1}},zz=3), S('a'))
run(F.rename(b=None), S('a'))
run(F.rename_keys(('*.a',)), S('a'))
run(F.rename_keys('x'), S('a'))
run(F.rename_keys(x='.a'), S('a'))
run(F.rename_keys(x='*.a'), S('a'))
run(F.rename_keys(x='*.b'), [{'__key__':'1','q.b':1}])
run(F.rename_keys(x=['a','b']), S('a'))
run(F.rename_keys(x='a;b'), S('a'))
run(F.map_dict(a=lambda v:None), [{'a':1}])
run(F.map_tuple(lambda v:None), [(1,)])
run(F.map_dict(a=str,handler=h(True)), [(1,2)])
run(F.to_tuple('a',handler=h(True)), [(1,2)])
run(F.select(None), [0,1])
list(wds.MockDataset({'a':1},2))
run(F.extract_keys(['*.z','*.a']), S('a'))
run(F.extract_keys(('*.z','*.a')), S('a'))
run(F.extract_keys(), [(1,)])
isinstance(F.detshuffle(4, 2, 7), F.PipelineStage)
[run(F.shuffle(b, i, random.Random(s)), range(n)) for b in (1, 2, 3, 5, 8, 20, 64) for i in (0, 1, 2, 7, 64) for s in (0, 1) for n in (0, 1, 2, 9, 40)]
[list(F._shuffle(iter(range(n)), b, i, random.Random(n))) for b in (2, 1000) for i in (1, 100) for n in (1, 50, 1500)]
list(wds.RandomMix([[1]*9,[2]*9,[3]*9], **drawn(5)))
list(wds.RandomMix([[1]*9,[2]*9,[3]*9], longest=True, **drawn(5)))
list(wds.RandomMix([[1]*9,[2]*9,[3]*9], [1,2,0.5], longest=True, **drawn(7)))
list(wds.RandomMix([[1]*9,[2]*9], [0,1], **drawn(5)))
list(wds.RandomMix([[1]*9,[]], longest=True, **drawn(5)))
list(wds.RandomMix([[1]*900,[2]*900,[3]*5], [1,3,2], longest=True, **drawn(11)))
list(wds.RandomMix([[1]*9,[2]*9],[1]))
list(wds.RandomMix([[1]*9,[2]*9],[1,1,1]))
(list(F.log_keys(path)(iter(S('a')))), open(path).read())
""".strip().splitlines()

# expression: id in docs/deviations.md, and why ours differs from both
DEVIATIONS = {
    "F.compose()(3)": "compose-nothing: composing nothing is the identity",
    "run(F.map(lambda x: {'a':1}), [{'__key__':'k'},{'z':1}])": "map-key: a sample without key gives none",
    "run(F.map(lambda x: {'a':1,'__key__':'mine'}), [{'__key__':'k'},{'z':1}])": "map-key: a key of the result's own is not overwritten with None",
    "run(F.rename_keys(b='a',keep_unselected=True), S('a','b'))": "rename-collision: a kept field that takes a renamed one's place is an error, not a loss",
    "run(F.associate(lambda k:None), S('a'))": "associate-none: nothing to add is no error",
    "run(F.batched(2), range(5))": "batch-of-values: plain values make one column",
    "run(F.batched(2), ['a','b','c'])": "batch-of-values: plain values make one column",
    "run(F.batched(0,None), range(3))": "batch-size: an impossible batch size is an error",
    "run(F.batched(2), [np.zeros(2),np.ones(2)])": "batch-of-values: arrays are stacked",
    "run(F.unlisted(), [(1,2),[3]])": "unlisted-tuples: tuples are lists too",
    "list(F.detshuffle(4,2,7)(iter(range(12))))": "stages-callable: every stage can be called",
    "(lambda d:[list(d(iter(range(4)))) for _ in range(2)])(F.Cached())": "stages-callable: every stage can be called",
    "list(wds.RoundRobin([]))": "mix-of-nothing: a mix of nothing is empty",
    "(lambda s: (list(F.info(n=1,stream=s)(iter([(1,'a'*100,np.zeros((2,3)))]))),s.getvalue()))(io.StringIO())": "info-tuples: tuples can be shown",
    "(lambda s: (list(F.info(fmt='{}',n=1,stream=s,name='nm')(iter([(1,2)]))),s.getvalue()))(io.StringIO())": "info-tuples: tuples can be shown",
    "run(F.rename(b=None), S('a'))": "usage-error: a UsageError instead of a TypeError",
    "run(F.select(None), [0,1])": "usage-error: a UsageError instead of a TypeError, where the predicate is given",
    "run(F.associate([1]), S('a'))": "usage-error: a UsageError instead of an AttributeError, likewise",
    "run(F.rename_keys(x=['a','b']), S('a'))": "usage-error: a UsageError instead of a TypeError",
    "run(F.map_dict(a=str,handler=h(True)), [(1,2)])": "handler-asked: the handler is asked about every failure",
    "run(F.to_tuple('a'), [{'a':None}])": "field-none: a field that is None is there, since JSON null is None",
    "run(F.to_tuple('a;b'), [{'a':None,'b':1}])": "field-none: a field that is None is there, since JSON null is None",
    "list(wds.RandomMix([[1]*9,[2]*9],[1]))": "mix-weights: a dataset without a weight is an error, not left out",
}

# expression: what 0.2.86 does otherwise than 1.0.2, whose way is ours
CHANGED = {
    "run(F.extract_keys('a','b'), S('a','b'))": "extract-keys: patterns matched only after a dot",
    "run(F.batched(2), [(i,str(i)) for i in range(5)])": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "run(F.batched(2,partial=False), [(i,str(i)) for i in range(5)])": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "run(F.batched(2), S('a'))": "batch-dict: no dictionaries in 0.2.86",
    "run(F.batched(2), [{'a':1,'b':2.5},{'a':2,'b':3}])": "batch-dict: no dictionaries in 0.2.86",
    "run(F.batched(2), [[1,'x'],[2,'y']])": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "run(F.batched(2), [(1,2),(3,)])": "batch-uneven: samples of different lengths were cut to the shortest",
    "run(F.batched(2), [((1,2),3),((4,5),6)])": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "run(F.batched(2), [({'a':1},3),({'a':2},6)])": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "run(F.batched(2), [(True,1.5,None),(False,2.5,None)])": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "run(F.batched(2), [(1,),(2.5,)])": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "run(F.batched(2), [(True,),(2,)])": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "run(F.batched(2), [(1,),('a',)])": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "run(F.batched(2), [(np.zeros(2),),(np.ones(2),)])": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "run(F.batched(2), [(np.float32(2),),(np.float32(3),)])": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "run(F.batched(2), [(b'a',),(b'b',)])": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "F.default_collation_fn([(1,np.zeros(2)),(2,np.ones(2))],combine_scalars=False)": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "F.default_collation_fn([(1,np.zeros(2)),(2,np.ones(2))],combine_tensors=False)": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "F.default_collation_fn([(1+2j,),(2j,)])": "batch-tuple: a list, where 1.0.2 gives a tuple",
    "run(F.unbatched(), [{'a':[1,2],'b':'xy'}])": "batch-dict: no dictionaries in 0.2.86",
    "run(F.shuffle(5,seed=3), range(12))": "newer-names: no seed= in 0.2.86",
    "run(F.shuffle(5,seed=3,rng=random.Random(0)), range(12))": "newer-names: no seed= in 0.2.86",
    "run(F.shuffle(5,seed=0), range(12))": "newer-names: no seed= in 0.2.86",
    "list(F.shuffle(5,seed=3)(iter(range(12))))==list(F.shuffle(5,rng=random.Random(3))(iter(range(12))))": "newer-names: no seed= in 0.2.86",
    "F.combine_values([1,2])": "newer-names: not there in 0.2.86",
    "F.combine_values([(1,),(2,)])": "newer-names: not there in 0.2.86",
}


def published(variable):
    """Outcomes of all cases under a published version, by expression."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} does not name the Python of an environment with the published package")
    with tempfile.TemporaryDirectory() as folder:
        answer = subprocess.run(
            [python, "-I", "-c", PRELUDE + MAIN, str(Path(folder) / "log")],
            input=json.dumps(CASES),
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
        )
    return dict(zip(CASES, map(json.loads, answer.stdout.splitlines()), strict=True))


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """Outcomes of all cases here, by expression."""
    names: dict[str, Any] = {}
    exec(PRELUDE, names)
    names["drawn"] = lambda seed: {"seed": seed}
    path = tmp_path_factory.mktemp("log") / "log"
    outcomes = {}
    for expression in CASES:
        path.write_text("")
        outcomes[expression] = names["outcome"](expression, path=str(path))
    return outcomes


def agree(mine, theirs):
    """Equal values; or both an error, and mine may be caught as theirs (no error of ours is an AssertionError)."""
    if mine[0] == theirs[0] == "error":
        return theirs[1][0] in mine[1] or theirs[1][0] in ("AssertionError", "NameError", "IndexError")
    return mine == theirs


def test_filters_agree_with_1_0_2(ours):
    """All outcomes are those of 1.0.2 but for the deviations listed, and each of those still deviates."""
    theirs = published("WDS_ORACLE_102")
    assert {case for case in CASES if not agree(ours[case], theirs[case])} == set(DEVIATIONS)


def test_filters_agree_with_0_2_86(ours):
    """All outcomes are those of 0.2.86 but for the deviations listed and what 1.0.2 changed."""
    theirs = published("WDS_ORACLE_086")
    different = {case for case in CASES if not agree(ours[case], theirs[case])}
    assert different - set(DEVIATIONS) == set(CHANGED)


def test_every_deviation_is_explained(unexplained):
    """The page for users explains each."""
    assert unexplained([*DEVIATIONS.values(), *CHANGED.values()]) == []
