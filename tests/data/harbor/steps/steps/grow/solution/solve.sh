#!/bin/bash
echo $(( $(cat number) + $(cat increment) )) > number
