#!/bin/bash
echo "double = lambda x: 2 * x" > double.py
