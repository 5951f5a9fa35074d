#!/bin/bash
set -e
mkdir -p /srv
tr " " "\n" < words.txt | sort > /srv/sorted.txt
