"""What torch's calls mean as network ops: a translator a function, with torch's signature.

Translators lie under the names that their ops have in tvdnn/ops.
"""
