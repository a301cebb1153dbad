"""What the protocols and topics share: methods written once for threads and for asyncio, waits, rights."""
