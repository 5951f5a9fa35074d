#!/bin/bash
mkdir -p /app/here
