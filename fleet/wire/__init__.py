"""The wire: protobuf definitions, the code generated from them, and the only translators to and from the words of ``fleet``.

Protobuf messages do not leave this folder and the gRPC shells that carry them.
"""
